"""Decides whether a command about guests is for their present life and in time, and which guests must end."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from node_agent.drivers.protocol import DriverError
from node_agent.fences import Fences
from node_agent.generations import Generations
from testbed.bus.messages import (
    Adopt,
    AnyAction,
    ExpectGuest,
    Fence,
    Hold,
    Migrate,
    MpiJoin,
    MpiPass,
    Release,
    RenewFences,
    Save,
    SetCaps,
    Start,
    Stop,
)
from testbed.errors import FailureCode


class FencedError(DriverError):
    """A guest must not be created or taken over any more, because its fence has fallen."""

    failure_code = FailureCode.FENCED


@dataclass(frozen=True, slots=True)
class Changes:
    """The tables that a command has changed, which must be written before the command is carried out."""

    generations: bool = False
    fences: bool = False


class GuestGuard:
    """The generations and the fences of one node; `now_ns` reads the clock of the fences. Does no input or output.

    `admit` is called for each command before it is carried out, in that order.
    """

    def __init__(self, generations: Generations, fences: Fences, now_ns: Callable[[], int]) -> None:
        self.generations = generations
        self.fences = fences
        self._now_ns = now_ns

    def admit(self, action: AnyAction) -> Changes:
        """Check a command; raises `OldGenerationError` or `FencedError` for one that must not be carried out."""
        match action:
            case Start() | Adopt() | ExpectGuest():
                return self._admit_guest(action)
            case RenewFences():
                if not self.fences.renew(action.fence.clock, action.fence.until_ns, action.guests):
                    raise FencedError(f"no fence is renewed: {action.fence.clock} is not the clock of this node")
                return Changes(fences=True)
            case SetCaps():
                admitted = [self.generations.admit(*each) for each in action.generations.items()]
                return Changes(any(admitted))
            case Hold() | Release() | Save() | Migrate() | MpiJoin() | MpiPass() | Stop():
                return Changes(self.generations.admit(action.guest, action.generation))
        return Changes()

    def _admit_guest(self, action: Start | Adopt | ExpectGuest) -> Changes:
        """Check a command after which a guest runs here, or may arrive."""
        if isinstance(action, ExpectGuest):
            guest, generation = action.guest, action.generation
        else:
            guest, generation = action.spec.guest, action.spec.generation
        self.check(guest, action.fence)
        take = self.generations.create if isinstance(action, Start) else self.generations.admit
        news = take(guest, generation)
        if action.fence is not None:
            self.fences.place(guest, action.fence.until_ns, arriving=isinstance(action, ExpectGuest))
        return Changes(news, fences=action.fence is not None)

    def check(self, guest: str, fence: Fence | None) -> None:
        """Raise `FencedError` if a guest must not begin to run under this fence."""
        why = None if fence is None else self.fences.refusal(fence.clock, fence.until_ns, self._now_ns())
        if why is not None:
            raise FencedError(f"guest {guest}: {why}")

    def gone(self, guest: str) -> bool:
        """Lift the fence of a guest that is gone; return whether the fences have changed."""
        return self.fences.lift(guest)

    def due(self) -> tuple[str, ...]:
        """Return the guests that must be destroyed now."""
        return self.fences.due(self._now_ns())


def encode_generations(generations: Generations) -> bytes:
    """Return the table as JSON."""
    return json.dumps(dict(generations.known)).encode()


def load_generations(content: bytes) -> Generations:
    """Return the table that an agent has written; raises `ValueError` for another content."""
    try:
        return Generations({str(task): int(number) for task, number in json.loads(content).items()})
    except (TypeError, AttributeError) as error:
        raise ValueError(f"no table of generations: {error}") from error
