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
    """A job: `tasks` tasks, each with a part of a node's CPU and memory, and work for `work_s` wall seconds.

    They would take that long on nodes of their own. `estimate_s` is the user's estimate of it, for policies that need
    one. For an `urgent` job others may be paused. Without a `program` its tasks run the scenario's. `least_yield_frac`
    is the yield that it is to have whenever it runs, under policies that know guarantees.
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
    """What jobs are there? Those that have ended are shown with `ended` only."""

    ended: bool = False


class Delete(msgspec.Struct, frozen=True, kw_only=True, tag="delete", forbid_unknown_fields=True):
    """End a job. Its user and root may ask for that."""

    job: Annotated[int, msgspec.Meta(ge=0)]


Request: TypeAlias = Submit | Show | Delete


class QueuedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job of the lab; times are wall seconds until now, `nodes` the names of the nodes of its tasks."""

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
    """The job is in the queue: it outlasts a loss of the controller's machine."""

    job: int


class Queue(msgspec.Struct, frozen=True, kw_only=True, tag="queue"):
    """The jobs, in order of submission; `state` is that of the lab: `running`, `closed` or a pause by its operator."""

    lab: str
    policy: str
    state: str
    jobs: tuple[QueuedJob, ...]


class Deleted(msgspec.Struct, frozen=True, kw_only=True, tag="deleted"):
    """The job has ended, and its guests are being destroyed."""

    job: int


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The request is not carried out; `mistaken` if it was wrong."""

    text: str
    mistaken: bool = False


Answer: TypeAlias = Accepted | Queue | Deleted | Refused
