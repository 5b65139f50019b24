"""Events of a run: one frozen Struct per kind of journal entry, with the meaning and the unit of each key.

`testbed.run.journal` reads and writes them as JSON lines. The list of all kinds and keys in `docs/journal.md` is
generated from this module. Entries of older journals are upgraded on reading (`upgrade`). Entries of kinds that only a
later version knows are read as `Unknown`; keys that only a later version knows are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Final, TypeAlias, get_args

import msgspec
from msgspec import UNSET, UnsetType

from testbed.bus.guest_details import GuestDetail, known_detail
from testbed.run.controller_entries import Recovered as Recovered  # noqa: PLC0414  # one of the names of this module
from testbed.run.controller_entries import Resumed as Resumed  # noqa: PLC0414  # one of the names of this module
from testbed.run.decision_entry import Choice as Choice  # noqa: PLC0414  # one of the names of this module
from testbed.run.decision_entry import Decision as Decision  # noqa: PLC0414  # one of the names of this module
from testbed.run.decision_entry import Trigger as Trigger  # noqa: PLC0414  # one of the names of this module
from testbed.run.decision_entry import View as View  # noqa: PLC0414  # one of the names of this module
from testbed.run.entry import (
    ActionNumber,
    Error,
    ImageName,
    JobId,
    LaterCode,
    NodeIndex,
    NodeName,
    Reason,
    Task,
    TaskNodes,
    VerbName,
    about,
)
from testbed.run.entry import Entry as Entry  # noqa: PLC0414  # one of the names of this module
from testbed.run.image_entries import ImagesDropped as ImagesDropped  # noqa: PLC0414  # one of the names of this module
from testbed.run.image_entries import Replicated as Replicated  # noqa: PLC0414  # one of the names of this module
from testbed.run.interruption_entries import Penalty as Penalty  # noqa: PLC0414  # one of the names of this module
from testbed.run.interruption_entries import Rescheduling as Rescheduling  # noqa: PLC0414  # one of the names of this module
from testbed.run.interruption_entries import ReschedulingCutOff as ReschedulingCutOff  # noqa: PLC0414  # one of the names of this module
from testbed.run.interruption_entries import Suspension as Suspension  # noqa: PLC0414  # one of the names of this module

VERSION: Final = 5
"""Version of the journal that this release writes; a journal without a version in its `begin` has version 1."""


# --- the run -----------------------------------------------------------------------------------------------


class Begin(Entry, frozen=True, kw_only=True, tag="begin"):
    """The run begins."""

    scenario: Annotated[str, about("name of the scenario")]
    policy: Annotated[str, about("name of the scheduling policy")]
    run_tag: Annotated[str, about("hexadecimal digits in the names of all guests and images of the run")]
    version: Annotated[int, about("version of the journal; 1 without this key")] = 1


class Calibration(Entry, frozen=True, kw_only=True, tag="calibration"):
    """The dedicated rates of the jobs are known."""

    core_units_per_s: Annotated[float | None, about("work per second of one core, measured on its own", "units/s")]
    probed_units_per_s: Annotated[
        float | None,
        about(
            "the same by the agents' probes while a job on their node was measured, as a quantile of them (in the "
            "first versions the mean); null if no agent reported it",
            "units/s",
        ),
    ]
    probed_quantile: Annotated[
        float, about("this quantile: an interrupted probe, or one with cold caches, is too slow; 0.5 without this key")
    ] = 0.5
    units_per_core_s: Annotated[
        dict[str, float], about("work of one task per second and core, by shape of the job", "units/s")
    ]


class TraceJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job of the trace; seconds are trace seconds."""

    job: JobId
    submit_time_s: Annotated[float, about("time of its submission", "trace s")]
    tasks: Annotated[int, about("number of its tasks")]
    cpu_need_frac: Annotated[float, about("CPU need of a task, as a fraction of a node")]
    mem_req_frac: Annotated[float, about("memory requirement of a task, as a fraction of a node")]
    run_time_s: Annotated[float, about("run time on dedicated nodes", "trace s")]
    memory_mib: Annotated[int | None, about("memory of a task; journals before version 3 do not have it")] = None
    cpu_cores: Annotated[float | None, about("CPU need of a task; journals before version 3 do not have it")] = None
    estimate_s: Annotated[float | None, about("the user's estimate of the run time, if there is one", "trace s")] = None
    urgent: Annotated[bool, about("whether other jobs may be paused for it")] = False
    program: Annotated[str | None, about("program of its tasks, if it is not the scenario's program")] = None
    weight: Annotated[float, about("its weight, under policies that know weights")] = 1.0
    least_yield_frac: Annotated[float, about("its guaranteed yield, under policies that know guarantees")] = 0.0
    true_need_frac: Annotated[
        float | None, about("real CPU need of a task, if it differs from the declared one; a fraction of a node")
    ] = None


class Replay(Entry, frozen=True, kw_only=True, tag="replay"):
    """The replay of the trace begins; trace second 0 was `trace_s` trace seconds before this entry."""

    jobs: Annotated[int, about("number of jobs in the trace")]
    trace: Annotated[tuple[TraceJob, ...], about("the jobs of the trace; older journals do not have them")] = ()
    nodes: Annotated[
        tuple[str, ...], about("names of the nodes, in the order of their numbers; journals before version 3 lack it")
    ] = ()
    served: Annotated[bool, about("whether users submit jobs to the lab, until an order to close")] = False


class Arrived(Entry, frozen=True, kw_only=True, tag="arrived"):
    """A user submitted a job to a served lab."""

    arrival: Annotated[TraceJob, about("the job")]
    by: Annotated[str, about("name of the user")]
    addresses: Annotated[tuple[str, ...], about("addresses of its guests, per task")]


class Teardown(Entry, frozen=True, kw_only=True, tag="teardown"):
    """All jobs have ended, and the lab was taken down."""

    elapsed_s: Annotated[float, about("duration of the teardown")]


class Clock(Entry, frozen=True, kw_only=True, tag="clock"):
    """The wall clock at the end: a comparison with the anchor in the manifest shows whether the clock was set."""

    unix_ns: Annotated[int, about("Unix time")]


class Aborted(Entry, frozen=True, kw_only=True, tag="aborted"):
    """The run was ended early."""

    reason: Reason


# --- decisions and jobs ------------------------------------------------------------------------------------


class Job(Entry, frozen=True, kw_only=True, tag="job"):
    """A job changed its state."""

    job: JobId
    state: Annotated[
        str,
        about(
            "`submitted`, `running` (first chosen), `paused`, `resumed`, `moving`, `withdrawn` (its guests were lost), "
            "`again` (it restarts), `done` or `failed`"
        ),
    ]
    code: Annotated[str | None, about("failure code, one of the codes below; only of failed jobs")] = None
    detail: Annotated[str | None, about("nodes or reason, as a text")] = None
    images_on: Annotated[
        tuple[int, ...], about("node of the image of each task, by number; only of jobs that run `again` from images")
    ] = ()


class Stranded(Entry, frozen=True, kw_only=True, tag="stranded"):
    """A job cannot be placed while nodes are lost, and is hidden from the policy; or it can be placed again."""

    job: JobId
    code: Annotated[
        str | None, about("reason, as one of the codes below; without a code the job can be placed again")
    ] = None
    detail: Annotated[str | None, about("reason, as a text")] = None


class Results(Entry, frozen=True, kw_only=True, tag="results"):
    """The controller compared the checksums of done jobs with the checksums that it computed from their work."""

    right: Annotated[int, about("number of jobs with right results")]
    wrong: Annotated[dict[str, str], about("reasons for wrong results, by job")]
    unchecked: Annotated[dict[str, tuple[int, ...]], about("jobs that were not compared, by reason")]


class Unchecked(Entry, frozen=True, kw_only=True, tag="unchecked"):
    """Results of a job were still being checked by the agents when the run ended."""

    job: JobId
    tasks: Annotated[tuple[int, ...], about("the tasks")]


class Doubt(Entry, frozen=True, kw_only=True, tag="doubt"):
    """A task was reported done sooner than any known core can do its work."""

    job: JobId
    task: Task
    node: NodeIndex
    reason: Reason


# --- operations --------------------------------------------------------------------------------------------


class Intent(Entry, frozen=True, kw_only=True, tag="intent"):
    """An operation begins; written before its first command."""

    action: ActionNumber
    verb: VerbName
    job: JobId
    nodes: TaskNodes
    yield_frac: Annotated[float, about("yield that it sets, as a fraction of the CPU need; 0 for none")]
    guests: Annotated[tuple[str, ...], about("names of the guests")]
    images: Annotated[
        tuple[str, ...], about("names of the images that it writes, copies or reads, per task; none before version 3")
    ] = ()


class NoRoom(Entry, frozen=True, kw_only=True, tag="no-room"):
    """An operation on a job is not carried out, because a node has no space for its images."""

    job: JobId
    verb: VerbName
    node: NodeIndex
    needed_mib: Annotated[int, about("space that the images need")]
    free_mib: Annotated[int, about("free space for images")]


class Retry(Entry, frozen=True, kw_only=True, tag="retry"):
    """An attempt of an operation failed; the operation is tried again."""

    action: ActionNumber
    job: JobId
    attempt: Annotated[int, about("number of the attempt that failed, from 1")]
    error: Error
    code: LaterCode = None


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """The image of one saved guest."""

    name: ImageName
    bytes: Annotated[int, about("its size")]
    digest: Annotated[str, about("its checksum")]
    generation: Annotated[int, about("generation of the guest that was saved; not before version 5")] = 0


CANCELLED: Final = "cancelled"
STAYS: Final = "stays"
NO_ROOM: Final = "no-room"


class Outcome(Entry, frozen=True, kw_only=True, tag="outcome"):
    """An operation ended. Its phases are those of the slowest guest, as the agents measured them."""

    action: ActionNumber
    verb: VerbName
    job: JobId
    nodes: TaskNodes
    ok: Annotated[bool, about("whether it succeeded")]
    error: Annotated[str | None, about("error message; null if it succeeded")]
    elapsed_s: Annotated[float, about("time from the first command to the last answer")]
    waited_s: Annotated[float, about("time from the plan to the first command")]
    bytes: Annotated[int, about("image bytes written, sent or read, or bytes sent by a live migration")]
    code: Annotated[
        str | None,
        about(
            "failure code: one of the codes below, `cancelled`, `stays` (guests run on their old nodes) or `no-room` "
            "(for images); journals before version 3 do not have it"
        ),
    ] = None
    reason: Annotated[
        str | None,
        about(
            "`preemption`, `migration` or `pause` (by the operator), if it interrupted the job; "
            "journals before version 3 lack it"
        ),
    ] = None
    images: Annotated[
        tuple[Image, ...], about("images that a save wrote, per task; journals before version 3 lack them")
    ] = ()
    caps_cores: Annotated[tuple[float, ...], about("CPU caps in force after it, as read back, per task")] = ()
    hold_s: Annotated[float | None, about("time until the guest was held")] = None
    hold_skew_s: Annotated[
        float | None, about("time between the first and the last guest held, by the nodes' clocks")
    ] = None
    run_on_s: Annotated[float | None, about("time until the guest stopped at the common iteration")] = None
    write_s: Annotated[float | None, about("time until the image was written")] = None
    sync_s: Annotated[float | None, about("time until the image was durable")] = None
    release_skew_s: Annotated[
        float | None, about("time between the first and the last guest released, by the nodes' clocks")
    ] = None
    downtime_s: Annotated[float | None, about("time for which a live migration stopped the guest")] = None
    migrate_s: Annotated[float | None, about("time until the guest had migrated live")] = None

    @property
    def failure_code(self) -> str | None:
        """The failure code; for journals before version 3 it follows from the text of the error where possible."""
        if self.ok or self.code is not None:
            return self.code
        if self.error == "cancelled":
            return CANCELLED
        return STAYS if self.verb == "migrate" else None


class Migration(Entry, frozen=True, kw_only=True, tag="migration"):
    """One guest migrated live or failed to; a failure has an `error`, and the node that had the guest after it."""

    job: JobId
    task: Task
    source: Annotated[int, about("number of the source node")]
    target: Annotated[int, about("number of the target node")]
    error: Annotated[str | None, about("reason of the failure, as a text")] = None
    ended: Annotated[bool, about("whether the guest ended instead; it counts as being on its target")] = False
    at_source: Annotated[
        bool | UnsetType | None, about("whether the source had the guest after a failure; null if unknown")
    ] = UNSET
    at_target: Annotated[
        bool | UnsetType | None, about("whether the target had the guest after a failure; null if unknown")
    ] = UNSET
    counted: Annotated[
        bool | None,
        about("whether the source measured the values below; otherwise times are upper bounds, bytes unknown"),
    ] = None
    bytes: Annotated[int | None, about("bytes sent")] = None
    elapsed_s: Annotated[float | None, about("time from the order until the guest ran on its target")] = None
    downtime_s: Annotated[float | None, about("time for which the guest was stopped")] = None
    rounds: Annotated[int | None, about("passes over the guest's memory")] = None


class FenceAwaited(Entry, frozen=True, kw_only=True, tag="fence-awaited"):
    """A withdrawn job waits until its guests have certainly ended on nodes that do not answer. Not before version 5.

    Each node destroys its guests when their fence falls.
    """

    job: JobId
    nodes: Annotated[tuple[int, ...], about("numbers of the nodes")]
    until_s: Annotated[float, about("end of the wait, if no node answers before, in wall seconds of the run")]


class Cleared(Entry, frozen=True, kw_only=True, tag="cleared"):
    """All guests of a failed or withdrawn job are destroyed: the job holds no memory. Not before version 3."""

    job: JobId


# --- guests and nodes --------------------------------------------------------------------------------------


class Guest(Entry, frozen=True, kw_only=True, tag="guest", dict=True):
    """An agent reported an event of a guest."""

    job: JobId
    task: Task
    node: NodeIndex
    event: Annotated[
        str,
        about(
            "`progress` (the first after a start), `drift` (of its cap), `healed` (it reports again), `ended` (its "
            "result is being checked), `done` or `failed`"
        ),
    ]
    detail: Annotated[dict[str, object], about("data that the agent reported with the event, by name")]

    @cached_property
    def typed(self) -> GuestDetail | None:
        """The detail as a typed object; None for a kind of event that this version does not know."""
        return known_detail(self.event, self.detail)


class Node(Entry, frozen=True, kw_only=True, tag="node"):
    """A node is suspect or lost, has returned, or has a new agent."""

    node: NodeName
    online: Annotated[bool, about("whether the node can be used")]
    standing: Annotated[str | None, about("`online`, `suspect` or `lost`; older journals do not have it")] = None
    reason: Reason
    code: LaterCode = None


class Limit(Entry, frozen=True, kw_only=True, tag="limit"):
    """An agent reached a bound on its own resources, or is below it again; at most once per minute."""

    node: NodeName
    what: Annotated[str, about("`memory` or `log`")]
    state: Annotated[str, about("`reached` or `left`")]
    value_mib: Annotated[int, about("present usage of the agent")]
    bound_mib: Annotated[int, about("the bound")]


class SuspiciousAct(msgspec.Struct, frozen=True, kw_only=True):
    """The suspicious acts of one kind by one node."""

    node: NodeName
    kind: Annotated[str, about("kind of the act, see [kinds](security.md#what-an-operator-sees)")]
    what: Annotated[str, about("description of the last act")]
    unix_s: Annotated[float, about("Unix time of the last act")]
    count: Annotated[int, about("number of acts")]


class Suspicious(Entry, frozen=True, kw_only=True, tag="suspicious"):
    """Suspicious acts were found since the last entry of this kind."""

    acts: Annotated[tuple[SuspiciousAct, ...], about("the acts, by node and kind")]


class Telemetry(Entry, frozen=True, kw_only=True, tag="telemetry"):
    """An agent dropped samples, because too many waited for the bus."""

    node: NodeIndex
    dropped: Annotated[int, about("number of samples, since the last entry of this kind")]


class Unsent(Entry, frozen=True, kw_only=True, tag="unsent"):
    """An agent could not send messages at once: replies had to be requested again, and events were sent later."""

    node: NodeIndex
    refused: Annotated[int, about("number of times, since the last entry of this kind")]


class Welcome(Entry, frozen=True, kw_only=True, tag="welcome"):
    """A node that had returned did not report its guests and images."""

    node: NodeName
    error: Error


class Returned(Entry, frozen=True, kw_only=True, tag="returned"):
    """A node that had returned was asked for its guests and images. Not before version 3."""

    node: NodeName
    reachable: Annotated[bool, about("whether it can be commanded; false if it is offline again")]
    missing: Annotated[tuple[str, ...], about("names of images of this run that it does not have any more")] = ()


# --- orders of the operator --------------------------------------------------------------------------------


class Order(Entry, frozen=True, kw_only=True, tag="order"):
    """The operator gave an order to the running controller. Not before version 4.

    From `pause` and `stop` on, trace time stands still, and running jobs are saved.
    """

    order: Annotated[
        str, about("`pause`, `continue`, `stop`, `close` (no more jobs), `drain` (a node) or `return` (a node)")
    ]
    node: Annotated[str | None, about("name of the node that is drained or returned; null for other orders")] = None
    by: Annotated[str, about("user and process that gave it, as reported by the kernel of the controller's machine")]


class ClockStarted(Entry, frozen=True, kw_only=True, tag="clock-started"):
    """Trace time continues after a pause: jobs that were saved for it run again. Not before version 4."""

    stood_still_s: Annotated[float, about("time for which trace time stood still")]


# --- recording of the run ----------------------------------------------------------------------------------


class RecorderFailed(Entry, frozen=True, kw_only=True, tag="recorder"):
    """A recorder failed, and is left out from now on."""

    name: Annotated[str, about("name of the recorder")]
    error: Error


class Refused(Entry, frozen=True, kw_only=True, tag="refused"):
    """A point did not fit the schema, and was left out; written once per measurement and field."""

    point: Annotated[str, about("measurement and field")]
    error: Error


Event: TypeAlias = (
    Begin | Calibration | Replay | Arrived | Decision | Job | Stranded | Intent | NoRoom | Retry | Outcome | Migration
    | Cleared | ImagesDropped | Replicated | Rescheduling | ReschedulingCutOff | Suspension | Guest | Node | Limit
    | Suspicious | Telemetry | Unsent | Welcome | Returned | Results | Doubt | Unchecked | RecorderFailed | Refused
    | Aborted | Teardown | Clock | Order | ClockStarted | Resumed | Recovered | FenceAwaited
)  # fmt: skip

KINDS: Final[Mapping[str, type[Entry]]] = {str(kind.__struct_config__.tag): kind for kind in get_args(Event)}
"""The types of events, by the value of the key `kind` in a journal."""


class Unknown(msgspec.Struct, frozen=True):
    """An entry of a kind that this version does not know; `entry` has all its keys."""

    t_s: float
    trace_s: float
    kind: str
    entry: dict[str, Any]


Known: TypeAlias = Event | Unknown

_NO_LIVE_MIGRATION: Final = {
    "migrated_bytes": 0, "live_s": 0.0, "downtime_s": 0.0, "hold_skew_s": 0.0, "release_skew_s": 0.0,
}  # fmt: skip
_ADDED: Final[Mapping[str, Mapping[str, object]]] = {
    "calibration": {"core_units_per_s": None, "probed_units_per_s": None},
    "rescheduling": _NO_LIVE_MIGRATION,
    "rescheduling_cut_off": _NO_LIVE_MIGRATION,
}
"""Keys, with their values, that entries of older journals lack, by kind."""


def kind_of(event: Known) -> str:
    """Return the kind of an event, as in the key `kind` of a journal."""
    return event.kind if isinstance(event, Unknown) else str(event.__struct_config__.tag)


def upgrade(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of an older journal with the keys of this version.

    Journals before version 2 may have no `trace_s` (it is 0), no rates of cores in `calibration`, and no live
    migration and no skews in `rescheduling`. Keys with a default need no upgrade.
    """
    given = dict(entry)
    if given.get("kind") == "calibration" and isinstance(given.get("units_per_core_s"), list):
        given["units_per_core_s"] = {}  # rates of nodes, not of shapes
    return {"trace_s": 0.0, **_ADDED.get(str(given.get("kind")), {}), **given}
