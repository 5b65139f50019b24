"""Messages between users of a served lab and its controller: one request and one answer, each a line of JSON."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from testbed.bus.guest_spec import ProgramName
from testbed.bus.limits import MOST_TRACE_S

MOST_ANSWER_BYTES: Final = 16 << 20
_Part = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
_Seconds = Annotated[float, msgspec.Meta(gt=0.0, le=MOST_TRACE_S)]


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag="submit", forbid_unknown_fields=True):
    """A job of `tasks` tasks, with the needs of a task as fractions of a node, and `work_s` of work.

    `work_s` is the run time on dedicated nodes, in wall seconds, and `estimate_s` the user's estimate of it, for
    policies that need one. Other jobs may be paused for an `urgent` job. Without a `program` the tasks run the default
    program of the scenario. `least_yield_frac` is the guaranteed yield of the running job, under policies that support
    guarantees.
    """

    tasks: Annotated[int, msgspec.Meta(ge=1, le=100_000)]
    cpu_need_frac: _Part
    mem_req_frac: _Part
    work_s: _Seconds
    estimate_s: _Seconds | None = None
    urgent: bool = False
    program: ProgramName | None = None
    least_yield_frac: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.0


class Show(msgspec.Struct, frozen=True, kw_only=True, tag="show", forbid_unknown_fields=True):
    """Request for the list of jobs; with `ended` it includes the jobs that have ended."""

    ended: bool = False


class Delete(msgspec.Struct, frozen=True, kw_only=True, tag="delete", forbid_unknown_fields=True):
    """Request to end a job, permitted to its user, the controller's user and root."""

    job: Annotated[int, msgspec.Meta(ge=0)]


Request: TypeAlias = Submit | Show | Delete


class QueuedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job of the lab; times are wall seconds until now, `nodes` has the names of the nodes of its tasks."""

    job: int
    user: str
    state: str
    tasks: int
    cpu_need_frac: float
    mem_req_frac: float
    work_s: float
    done_frac: float
    urgent: bool
    program: str
    since_submit_s: float
    waited_s: float
    nodes: tuple[str, ...] = ()
    reason: str = ""


class Accepted(msgspec.Struct, frozen=True, kw_only=True, tag="accepted"):
    """The job is in the queue, durable: it survives a crash of the controller's machine."""

    job: int


class Queue(msgspec.Struct, frozen=True, kw_only=True, tag="queue"):
    """The jobs, in order of submission; `state` is `running`, `closed`, or the operator's hold such as `paused`."""

    lab: str
    policy: str
    state: str
    jobs: tuple[QueuedJob, ...]


class Deleted(msgspec.Struct, frozen=True, kw_only=True, tag="deleted"):
    """The job has ended, and its guests are being destroyed."""

    job: int


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The request was refused; `mistaken` if the request is invalid."""

    text: str
    mistaken: bool = False


Answer: TypeAlias = Accepted | Queue | Deleted | Refused
