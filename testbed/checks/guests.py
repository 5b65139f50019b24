"""A job on the lab's nodes for code that is not asynchronous: each call returns when the operation has ended."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from types import TracebackType
from typing import Self

from testbed.bus.guest_details import GuestReport
from testbed.bus.messages import CapChange, GuestSpec
from testbed.checks.portal import Portal
from testbed.errors import TestbedError
from testbed.lab.bench import Bench, Watched
from testbed.lab.specimen import (
    Capped,
    Held,
    Migrated,
    Progress,
    Restored,
    Saved,
    Specimen,
    Started,
    Transferred,
)


class Saving:
    """A save that goes on."""

    def __init__(self, future: Future[Saved]) -> None:
        self._future = future

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._future.done()

    def failed(self) -> bool:
        """Wait for its end, and return whether it failed; raises what is no failure of a save."""
        error = self._future.exception()
        if error is not None and not isinstance(error, TestbedError):
            raise error
        return error is not None


class Guest:
    """One job: a task on each of its nodes. As a context it destroys its guests and images, whatever happened.

    Durations are the controller's, in seconds; see `testbed.lab.specimen` for what each operation returns.
    Every operation raises `TestbedError` if it fails.
    """

    def __init__(self, portal: Portal, bench: Bench, specimen: Specimen) -> None:
        self._portal = portal
        self._bench = bench
        self._specimen = specimen

    def __enter__(self) -> Self:
        self._portal.call(self._specimen.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.call(self._specimen.__aexit__(kind, error, trace))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its guests, by task."""
        return self._specimen.guests

    @property
    def name(self) -> str:
        """Name of the guest of its first task."""
        return self._specimen.guests[0]

    @property
    def specs(self) -> tuple[GuestSpec, ...]:
        """What its guests were asked for, by task."""
        return self._specimen.specs

    @property
    def nodes(self) -> tuple[int, ...]:
        """Where its tasks are, by task: indexes of nodes in the lab."""
        return self._specimen.nodes

    @property
    def cpu_cores(self) -> float:
        """What a task can use at yield 1, in cores."""
        return self._specimen.cpu_cores

    @property
    def memory_mib(self) -> int:
        """Memory of a task."""
        return self._specimen.memory_mib

    def start(self, yield_frac: float = 1.0) -> Started:
        """Create its guests and return when every task has progressed."""
        return self._portal.call(self._specimen.start(yield_frac))

    def set_yield(self, yield_frac: float) -> Capped:
        """Set the caps of its guests to `yield_frac` of `cpu_cores`."""
        return self._portal.call(self._specimen.set_yield(yield_frac))

    def hold(self) -> Held:
        """Let every guest stand still at its next consistent point."""
        return self._portal.call(self._specimen.hold())

    def release(self) -> float:
        """Let held guests go on; return how long the order took, in seconds."""
        return self._portal.call(self._specimen.release())

    def save(self, store: str = "") -> Saved:
        """Coordinated checkpoint; the guests are gone afterwards."""
        return self._portal.call(self._specimen.save(store))

    @contextlib.contextmanager
    def saving(self) -> Iterator[Saving]:
        """Save it beside the block; what it comes to is awaited at the block's end, and told by what is yielded."""
        _task, future = self._portal.begin(self._specimen.save())
        try:
            yield Saving(future)
        finally:
            wait((future,))

    def transfer(self, nodes: Sequence[int]) -> Transferred:
        """Copy the images of tasks that move to `nodes`, where `restore` will create them."""
        return self._portal.call(self._specimen.transfer(nodes))

    def restore(self, *, cold: bool = False, yield_frac: float = 1.0) -> Restored:
        """Create its guests from their images; return when every task has progressed."""
        return self._portal.call(self._specimen.restore(cold=cold, yield_frac=yield_frac))

    def migrate(self, nodes: Sequence[int], yield_frac: float = 1.0) -> Migrated:
        """Move the tasks that are not on `nodes` there while they work."""
        return self._portal.call(self._specimen.migrate(nodes, yield_frac))

    def stop(self) -> None:
        """Destroy its guests and delete their images; harmless when there are none."""
        self._portal.call(self._specimen.stop())

    def progress(self) -> dict[str, Progress]:
        """Return how far each guest is, by its name."""
        return self._portal.call(self._specimen.progress())

    def rate(self, window_s: float) -> float:
        """Return work units a second of the slowest task over about `window_s`, by the program's own clock."""
        return self._portal.call(self._specimen.rate(window_s))

    def edge(self) -> tuple[float, int]:
        """Wait until the first task's progress is seen to change; return the controller's time (s) and its units."""
        return self._portal.call(self._specimen.edge())

    def wait_end(self) -> dict[str, GuestReport]:
        """Return the last event of each guest once all have ended; raises `RunError` if one failed."""
        return self._portal.call(self._specimen.wait_end())

    def watch(self, every_s: float, for_s: float, changes: Sequence[tuple[float, float]] = ()) -> Watched:
        """Sample CPU time and work units of the first task every `every_s` for `for_s` seconds, on its node.

        `changes` are pairs (after so many seconds, new cap in cores).
        """
        caps = tuple(CapChange(after_s=after_s, caps={self.name: cores}) for after_s, cores in changes)
        return self._portal.call(self._bench.watch(self.nodes[0], (self.name,), every_s, for_s, caps))
