"""Images that a planned action reads or writes, and nodes that it needs."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.control.cluster import LiveJob
from testbed.control.planner import PlannedAction, Verb


def then_to(actions: Sequence[PlannedAction], index: int) -> tuple[int, ...] | None:
    """Return the nodes to which the plan transfers the images of its save at this index, None if it does not."""
    moves = (action.nodes for action in actions if action.verb is Verb.TRANSFER and index in action.after)
    return next(moves, None)


def images_of(live: LiveJob, action: PlannedAction) -> tuple[str, ...]:
    """Return the names of the images that an action writes, copies or reads, by task."""
    match action.verb:
        case Verb.SAVE:
            return live.image_names(len(live.state.interruptions) + 1)
        case Verb.TRANSFER | Verb.RESTORE:
            return tuple(image.name for image in live.state.images)
    return ()


def touched(live: LiveJob, action: PlannedAction) -> set[int]:
    """Return the nodes that an action commands, and the source nodes of its images or guests."""
    state = live.state
    sources = state.saved_on if action.verb in (Verb.TRANSFER, Verb.RESTORE) else state.running_on
    return {*action.nodes, *(sources or ())}
