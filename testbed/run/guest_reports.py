"""Changes of a job's state by events of its guests: progress, ends, and results."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from testbed.bus.guest_details import Done, Ended, Progress
from testbed.run.events import Guest
from testbed.run.intents import Flight


class HasGuests(Protocol):
    """A job with guests; see `JobHistory`."""

    flight: Flight | None
    withdrawn: str
    units_done: dict[int, int]
    progressed: set[int]
    unready: set[int]
    finished_tasks: set[int]
    unchecked: dict[int, int]
    checksums: dict[int, str]

    @property
    def ended(self) -> bool:
        """Whether it is done or failed."""

    def places(self, task: int) -> frozenset[int]:
        """Return the nodes at which a task holds memory."""


def hear(job: HasGuests, event: Guest) -> bool:
    """Apply an event of a guest; return whether it fits the job's state. Other events change nothing."""
    task = event.task
    if job.unchecked.get(task) == event.node and event.event in ("done", "failed"):
        del job.unchecked[task]
        return True
    if job.ended or job.withdrawn or event.node not in job.places(task):
        return False
    detail = event.typed
    match detail:
        case Progress():
            _progress(job, event)
        case Done():
            if isinstance(detail, Ended):
                job.unchecked[task] = event.node
            job.checksums[task] = detail.checksum
            job.finished_tasks.add(task)
            _progress(job, event)  # a short rest of its work may end before the first report of it
        case _:
            return True
    if detail.units is not None:
        job.units_done[task] = max(job.units_done.get(task, 0), detail.units)
    return True


def _progress(job: HasGuests, event: Guest) -> None:
    job.progressed.add(event.task)
    job.unready.discard(event.task)
    flight = job.flight
    if flight is not None and flight.verb == "migrate" and flight.nodes[event.task] == event.node:
        job.flight = replace(flight, progressed=flight.progressed | {event.task})
