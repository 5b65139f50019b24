"""The guests of a job and their nodes, for operations on the job."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from testbed.bus.messages import GuestSpec
from testbed.lab.guest_specs import cap_at


class Whereabouts(Protocol):
    """The location and the state of a job's guests, by task. For a job of a run this is the job's history."""

    @property
    def running_on(self) -> tuple[int, ...] | None:
        """The nodes on which its guests run, by task."""

    @property
    def saved_on(self) -> tuple[int, ...] | None:
        """The nodes with the images from which the job would be restored, by task."""

    @property
    def yield_frac(self) -> float:
        """The yield to which the caps of its guests are set."""

    @property
    def finished_tasks(self) -> AbstractSet[int]:
        """Tasks whose guests have ended."""

    @property
    def been(self) -> AbstractSet[tuple[int, int]]:
        """Pairs (node, task) of all nodes on which a task was ever ordered to run."""

    @property
    def generation(self) -> int:
        """The number of the current life of its guests; agents do not check 0."""

    @property
    def ended(self) -> bool:
        """Whether the job is done or failed."""

    @property
    def moving(self) -> bool:
        """Whether its guests are being saved, or migrate live."""

    def places(self, task: int) -> frozenset[int]:
        """Return the nodes on which a task uses memory: none, one, or two while it migrates live."""


@dataclass(slots=True)
class Unrecorded:
    """Location and state of a job outside any run, updated by the object that commands the job."""

    running_on: tuple[int, ...] | None = None
    saved_on: tuple[int, ...] | None = None
    yield_frac: float = 0.0
    finished_tasks: set[int] = field(default_factory=set)
    been: set[tuple[int, int]] = field(default_factory=set)
    generation: int = 0
    ended: bool = False
    moving: bool = False

    def places(self, task: int) -> frozenset[int]:
        """See `Whereabouts`."""
        return frozenset() if self.running_on is None else frozenset((self.running_on[task],))

    def arrive(self, *, task: int, target: int, error: str | None = None, **_more: object) -> None:
        """Record that a guest has migrated live or ended meanwhile, or that it stayed because of an `error`."""
        if error is None and self.running_on is not None:
            self.running_on = (*self.running_on[:task], target, *self.running_on[task + 1 :])


@dataclass(slots=True, eq=False, kw_only=True)
class JobGuests:
    """The guests of one job; agents check the job's result if it is `verified`."""

    specs: tuple[GuestSpec, ...]
    state: Whereabouts
    verified: bool = True

    @property
    def job_id(self) -> int:
        """The id of the job."""
        return self.specs[0].job

    @property
    def generation(self) -> int:
        """The number of the current life of its guests."""
        return self.state.generation

    @property
    def present_specs(self) -> tuple[GuestSpec, ...]:
        """The specs with the current generation, by task, for commands."""
        return tuple(msgspec.structs.replace(spec, generation=self.generation) for spec in self.specs)

    @property
    def guests(self) -> tuple[str, ...]:
        """Names of its guests, by task."""
        return tuple(spec.guest for spec in self.specs)

    @property
    def memory_mib(self) -> int:
        """Memory of one task."""
        return self.specs[0].memory_mib

    def cap_cores(self, yield_frac: float) -> float:
        """Return the cap of each guest at a yield, with the present CPU need of the job."""
        return cap_at(self.specs[0], yield_frac)

    def image_names(self, number: int) -> tuple[str, ...]:
        """Names of the images of save `number`, by task; unique per save, so that a delayed delete is harmless."""
        return tuple(f"{guest}-s{number}.img" for guest in self.guests)

    def taken_over(self, task: int) -> None:
        """Record that a guest is being adopted on its new node: its earlier progress does not count any more."""
