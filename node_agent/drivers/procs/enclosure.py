"""The interface by which a guest's program is started in an enclosure, such as a container."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from node_agent.drivers.procs.child import Running
from node_agent.drivers.procs.keeping import Kept
from testbed.bus.messages import GuestSpec


class Enclosure(Protocol):
    """An enclosure (such as a container) that starts a guest's program."""

    def __call__(
        self, kept: Kept, spec: GuestSpec, image: Path | None, argv: list[str], env: dict[str, str], folder: Path,
        on_output: Callable[[bytes], None],
    ) -> Awaitable[Running]:  # fmt: skip
        """Start a command in `folder`, whose program may read `image`. `kept` is the guest's life at the keeper."""
