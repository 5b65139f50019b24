"""Generations: numbers of the lives of tasks, so that a late command for an earlier life is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping

from node_agent.drivers.protocol import DriverError, ImageLostError
from testbed.bus.messages import ImageRef
from testbed.errors import FailureCode

MOST_TASKS = 4096
_RESTARTED = re.compile(r"-r\d+\Z")  # the ending of a guest's name after a restart from the beginning


class OldGenerationError(DriverError):
    """A command for an earlier life of a task."""

    failure_code = FailureCode.OLD_GENERATION


def task_of(guest: str) -> str:
    """Return the name that all guests of one task have in common, over all restarts from the beginning."""
    return _RESTARTED.sub("", guest)


class Generations:
    """The highest generation that this node has received for each task.

    Generation 0 means that the controller gives none: it is not checked. The last `MOST_TASKS` tasks are
    kept; names of tasks are unique over all runs.
    """

    def __init__(self, known: Mapping[str, int] | None = None) -> None:
        self._known: dict[str, int] = dict(known or {})

    @property
    def known(self) -> Mapping[str, int]:
        """The highest generation by task."""
        return self._known

    def admit(self, guest: str, generation: int) -> bool:
        """Take the generation of a command; return whether it is new. Raises `OldGenerationError` for an older one."""
        highest = self._known.get(task_of(guest), 0)
        if generation in (0, highest):
            return False
        if generation < highest:
            raise OldGenerationError(
                f"guest {guest}: the command is for generation {generation}: generation {highest} is known here"
            )
        self._known.pop(task_of(guest), None)  # re-inserted, so that the task without a change for longest comes first
        self._known[task_of(guest)] = generation
        if len(self._known) > MOST_TASKS:
            del self._known[next(iter(self._known))]
        return True

    def create(self, guest: str, generation: int) -> bool:
        """Take the generation of a guest that is to be created, which is higher than all before.

        Returns whether it is new. Raises `OldGenerationError` for the same or an older one.
        """
        highest = self._known.get(task_of(guest), 0)
        if generation and generation <= highest:
            raise OldGenerationError(
                f"guest {guest}: it cannot be created as generation {generation}: generation {highest} is known here"
            )
        return self.admit(guest, generation)


def check_image(image: ImageRef, noted: int) -> None:
    """Raise `ImageLostError` if an image, noted with its generation, is of another life than the controller expects."""
    if image.generation and noted and image.generation != noted:
        raise ImageLostError(f"image {image.image}: of generation {noted}, expected {image.generation}")
