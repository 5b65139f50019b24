"""The copies of a job's images: which nodes certainly have a complete one, and which may have one."""

from __future__ import annotations

from typing import Protocol

from testbed.run.entry import Entry
from testbed.run.events import Image
from testbed.run.image_entries import ImagesDropped, Replicated
from testbed.run.intents import Flight
from testbed.run.phases import IllegalEventError, Phase


class Saved(Protocol):
    """A job with images; see `JobHistory`."""

    phase: Phase
    flight: Flight | None
    saved_on: tuple[int, ...] | None
    images: tuple[Image, ...]
    image_holders: set[tuple[int, str]]
    whole_copies: set[tuple[int, str]]
    copying: set[tuple[int, str]]

    def illegal(self, event: Entry, wanted: str, reason: str) -> IllegalEventError:
        """Return the error of an event that would change the job to `wanted`."""


def change(job: Saved, event: ImagesDropped | Replicated) -> None:
    """Apply an event; raises `IllegalEventError` if the job cannot be restored from a copy."""
    if isinstance(event, Replicated):
        _replicate(job, event)
    else:
        for copies in (job.image_holders, job.whole_copies, job.copying):
            copies -= {copy for copy in copies if not event.images or copy[1] in event.images}


def _replicate(job: Saved, event: Replicated) -> None:
    copy = (-1 if event.node is None else event.node, event.image)
    job.copying.discard(copy)
    match event.state:
        case "begun" if event.node is not None:
            job.image_holders.add(copy)
            job.copying.add(copy)
        case "repaired" if event.image in [image.name for image in job.images]:
            job.image_holders.add(copy)
            job.whole_copies.add(copy)
        case "complete" if copy in job.image_holders:  # otherwise the copy was dropped meanwhile
            job.whole_copies.add(copy)
        case "used":
            saved_on, task = job.saved_on or (), event.task
            names = [image.name for image in job.images]
            legal = job.phase is Phase.SAVED and job.flight is None and copy in job.whole_copies
            if not legal or task >= len(saved_on) or names[task : task + 1] != [event.image]:
                reason = "expected a saved job without an operation under way, and a complete copy of its last image"
                raise job.illegal(event, "used", reason)
            job.saved_on = (*saved_on[:task], copy[0], *saved_on[task + 1 :])
