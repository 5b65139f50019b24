"""Schedules: the node, yield and state of every task over time, as measured in a run or computed by a simulation.

A span is a time in which one task is on one node in one state and at one yield. Its kinds are:

* `start`: the guest is being created, until it exists or has progressed;
* `run`: the task runs under the cap of its yield; a new span begins with each change of the yield;
* `save`: the task is held and written to an image;
* `wait`: the task is saved and selected to run again, but waits for memory or for another operation;
* `transfer`: the task's image is copied to the node of the span;
* `restore`: the task is read back, until it has progressed again, which ends the penalty of [RR 5.1];
* `live`: the task runs on its node while it migrates live from there.

A job that the policy does not select to run has no spans after its saves: a gap between its spans is a preemption.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

RUN = "run"
START = "start"
SAVE = "save"
WAIT = "wait"
TRANSFER = "transfer"
RESTORE = "restore"
LIVE = "live"
KINDS = (RUN, START, SAVE, WAIT, TRANSFER, RESTORE, LIVE)
RUNS = frozenset({RUN, LIVE})  # the task progresses
PENALTIES = frozenset({SAVE, WAIT, TRANSFER, RESTORE})  # the job is delayed by its rescheduling
IN_MEMORY = frozenset({RUN, START, SAVE, RESTORE, LIVE})  # the task holds memory of its node

WAITING = "waiting"
RUNNING = "running"
PAUSED = "paused"
DONE = "done"
FAILED = "failed"
ENDED = frozenset({DONE, FAILED})


@dataclass(frozen=True, slots=True)
class Span:
    """A span of task `task` of a job on `node`; wall seconds since the replay began, `end_s` None for an open span.

    `yield_frac` is the task's cap over its CPU need: 0 while it is saved, transferred or waits. `cpu_need_frac` is that
    need, NaN if it is the declared one of the job.
    """

    job: int
    task: int
    node: int
    begin_s: float
    end_s: float | None
    kind: str
    yield_frac: float
    cpu_need_frac: float = field(default=math.nan, compare=False)


@dataclass(frozen=True, slots=True)
class ShareMove:
    """Shares of a job that moved, in cores, at wall second `t_s` since the replay began.

    `giver` and `receiver` are tasks by number, None for the bank of the job.
    """

    job: int
    giver: int | None
    receiver: int | None
    t_s: float
    cores: float


@dataclass(slots=True)
class JobFacts:
    """The known data of a job; times in wall seconds since the replay began, NaN if unknown.

    `start_s` is the time at which the policy first selected the job to run. `penalty_s` is the sum of the measured
    penalties of completed reschedulings.
    """

    job: int
    state: str = WAITING
    tasks: int = 0
    cpu_need_frac: float = math.nan
    mem_req_frac: float = math.nan
    submit_s: float = math.nan
    start_s: float = math.nan
    end_s: float = math.nan
    preemptions: int = 0
    migrations: int = 0
    penalty_s: float = 0.0

    @property
    def turnaround_s(self) -> float:
        """Time from submission to end, NaN before the end."""
        return self.end_s - self.submit_s


@dataclass(frozen=True, slots=True)
class Schedule:
    """A complete schedule up to `end_s`, in which every span has an end; times are wall seconds at `time_scale`.

    `nodes` is the number of nodes; `node_names` may have fewer names. `name` is a label of the schedule.
    """

    name: str
    spans: Sequence[Span]
    jobs: Mapping[int, JobFacts]
    nodes: int
    node_names: Sequence[str]
    time_scale: float
    end_s: float
    share_moves: Sequence[ShareMove] = ()  # of jobs that compete by shares
    policy: str = ""  # name of the policy, empty if unknown

    def to_trace_s(self, wall_s: float) -> float:
        """Return the trace second of a wall second since the replay began."""
        return wall_s * self.time_scale

    def node_name(self, node: int) -> str:
        """Return the name of a node, or its index if it has none."""
        return self.node_names[node] if node < len(self.node_names) else str(node)
