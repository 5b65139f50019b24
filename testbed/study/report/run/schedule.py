"""A schedule: when every task was where, at which yield, as a run measured it or a simulation computed it.

A span is what one task did on one node without a change:

* `start`: its guest is being created, until it is there or has progressed;
* `run`: it runs under the cap of its yield; a new span begins with each change of the yield;
* `save`: it is held and written to an image;
* `wait`: it is saved and wanted again, but waits for memory or for another operation;
* `transfer`: its image is copied to the node of the span;
* `restore`: it is read back, until it has progressed again: up to there goes the penalty of [RR 5.1];
* `live`: it runs on its node while it migrates from there live.

A job that the policy does not want to run has no spans after its saves: a gap in its line is a preemption.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

RUN = "run"
START = "start"
SAVE = "save"
WAIT = "wait"
TRANSFER = "transfer"
RESTORE = "restore"
LIVE = "live"
KINDS = (RUN, START, SAVE, WAIT, TRANSFER, RESTORE, LIVE)
RUNS = frozenset({RUN, LIVE})  # the task progresses
PENALTIES = frozenset({SAVE, WAIT, TRANSFER, RESTORE})  # the job is held up by its rescheduling
IN_MEMORY = frozenset({RUN, START, SAVE, RESTORE, LIVE})  # the task holds memory of its node

WAITING = "waiting"
RUNNING = "running"
PAUSED = "paused"
DONE = "done"
FAILED = "failed"
ENDED = frozenset({DONE, FAILED})


@dataclass(frozen=True, slots=True)
class Span:
    """A span of task `task` of a job on `node`; wall seconds since the replay began, `end_s` None while it lasts.

    `yield_frac` is its cap over its CPU need: 0 while it is saved, copied or waits.
    """

    job: int
    task: int
    node: int
    begin_s: float
    end_s: float | None
    kind: str
    yield_frac: float


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
    """The known data of a job: wall seconds since the replay began, NaN for unknown ones.

    `start_s` is when the policy first chose to run it. `penalty_s` sums the measured penalties of the reschedulings
    that are complete.
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
        """From submission to end, NaN before the end."""
        return self.end_s - self.submit_s


@dataclass(frozen=True, slots=True)
class Schedule:
    """All of a schedule up to `end_s`: every span has an end. Times are wall seconds of a replay at `time_scale`.

    `nodes` of them, with `node_names` as far as they have names. `name` says in a few words whose schedule it is.
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
