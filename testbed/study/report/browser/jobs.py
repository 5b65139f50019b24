"""Jobs by state, guests by node and operations in progress at one moment, from the history, for the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from testbed.run.history import History
from testbed.run.intents import Flight
from testbed.run.job_history import JobHistory
from testbed.run.phases import ENDED, Phase

STATES: Final = ("coming", "waiting", "running", "paused", "done", "failed")
_phase: Final = attrgetter("phase")
_LEAST_FRAC: Final = 0.05  # fraction of the work that must be done before an ETA is estimated


@dataclass(frozen=True, slots=True)
class GuestRow:
    """A task that holds memory on a node, with its present or coming yield; `verb` is its operation in progress."""

    job: int
    task: int
    yield_frac: float
    cpu_need_frac: float
    mem_req_frac: float
    verb: str


@dataclass(frozen=True, slots=True)
class Board:
    """The jobs of a run at one moment.

    `total` is the number of jobs in the trace, `counts` the number of jobs by state. `queued` has the ids of waiting
    and of paused jobs in order of submission, `flights` the operations in progress with their jobs, the oldest first.
    `guests` are those of active jobs by node, sorted by job and task; a task that migrates live is on both nodes.
    `done_frac` is the fraction of all work that is done, see the function `done_frac`.
    """

    total: int
    counts: Mapping[str, int]
    queued: Mapping[str, Sequence[int]]
    flights: Sequence[tuple[int, Flight]]
    guests: Mapping[int, Sequence[GuestRow]]
    done_frac: float

    def eta_s(self, elapsed_s: float) -> float | None:
        """Return the estimated seconds to the end, at the mean rate of the `elapsed_s` so far; None if too early."""
        frac = self.done_frac
        return elapsed_s * (1 - frac) / frac if frac > _LEAST_FRAC else None


def board_of(history: History) -> Board:
    """Return the board of a run; a run that has ended has no guests and no operations."""
    total = 0 if history.replay is None else history.replay.jobs
    found = Counter(map(_phase, history.jobs.values()))
    counts = {**dict.fromkeys(STATES, 0), "done": found[Phase.DONE], "failed": found[Phase.FAILED]}
    counts["coming"] = max(0, total - len(history.active) - counts["done"] - counts["failed"])
    queued: dict[str, list[int]] = {"waiting": [], "paused": []}
    guests: dict[int, list[GuestRow]] = {}
    for job in sorted(history.active.values(), key=lambda job: job.job) if not history.ended else ():
        for task in range(job.tasks):
            for node in job.places(task):
                guests.setdefault(node, []).append(_row(job, task))
    for job in history.active.values():
        state = job.state
        counts[state] += 1
        if state in queued:
            queued[state].append(job.job)
    flights = (
        [] if history.ended else [(job.job, job.flight) for job in history.jobs.values() if job.flight is not None]
    )
    return Board(total, counts, queued, sorted(flights, key=lambda each: each[1].action), guests, done_frac(history))


def _row(job: JobHistory, task: int) -> GuestRow:
    flight = job.flight
    created = flight is not None and flight.verb in ("start", "restore")
    yield_frac = flight.yield_frac if flight is not None and created else job.yield_frac
    return GuestRow(
        job.job, task, yield_frac, job.cpu_need_frac, job.mem_req_frac, "" if flight is None else flight.verb
    )  # fmt: skip


def done_frac(history: History) -> float:
    """Return the fraction of all work that is done, as of the last decision; 0 for a journal without run times.

    The work of a job is tasks * CPU need * dedicated run time.
    """
    whole = done = 0.0
    for job in history.jobs.values():
        run_time_s = job.run_time_s
        if run_time_s:
            work = job.tasks * job.cpu_need_frac * run_time_s
            whole += work
            done += work * (1.0 if job.phase in ENDED else min(1.0, job.virtual_time_s / run_time_s))
    return done / whole if whole else 0.0
