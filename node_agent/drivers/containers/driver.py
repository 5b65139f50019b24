"""Guests as containers: the programs of the process driver, each in a container of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from node_agent.drivers.caps.protocol import Caps
from node_agent.drivers.containers.caps import ContainerCaps
from node_agent.drivers.containers.child import ContainerChild
from node_agent.drivers.containers.engine import Engine
from node_agent.drivers.process import ProcessDriver
from node_agent.drivers.procs.guest import House, State
from node_agent.drivers.protocol import DriverError, DriverFacts, Happening, NodeBudget, SaveReport
from testbed.bus.messages import GuestSpec


class DockerDriver(ProcessDriver):
    """One guest = one container of the engine at `url`, by default the one that the environment or the system names.

    A container sees this machine's programs and libraries read-only, and the folders of its node; it has the guest's
    memory as its limit, and no capability. Its cap is the engine's quota. Ranks of MPI jobs use the machine's own
    network and shared memory. Guests are saved by their programs' own checkpoints.
    """

    name = "docker"

    def __init__(self, url: str | None = None) -> None:
        super().__init__()
        self._url = url
        self._engine = Engine(url)
        self._container_caps: ContainerCaps | None = None

    async def open(self, budget: NodeBudget, tell: Callable[[Happening], None]) -> DriverFacts:
        """See `Driver.open`: containers that an earlier agent of this node left are removed."""
        budget.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        version = await self._engine.open(budget)
        await self._engine.make_image()
        facts = await super().open(budget, tell)
        return replace(facts, versions={**facts.versions, "docker": version})

    async def sweep(self, budget: NodeBudget, *, dry_run: bool = False) -> list[str]:
        """See `Driver.sweep`: containers are known by their labels."""
        engine = Engine(self._url)
        await engine.open(budget)
        try:
            guests = await engine.sweep(dry_run=True)
            found = [*(f"guest {guest}" for guest in guests), *await super().sweep(budget, dry_run=True)]
            if not dry_run:
                await engine.sweep()  # with processes that were just found
                await super().sweep(budget)
        finally:
            engine.close()
        return found

    async def open_caps(self, group: str) -> Caps:
        """See `ProcessDriver.open_caps`; programs on the node itself have the caps of the process driver."""
        self._container_caps = ContainerCaps(self._engine, await super().open_caps(group))
        return self._container_caps

    async def save(self, guest: str, at: int | None, image: Path) -> SaveReport:
        """See `Driver.save`; an image in the machine's memory counts as memory of the container that writes it."""
        there = self._get(guest)
        container = self._container_caps and self._container_caps.container(guest)
        if container and there.state is State.HELD:
            await self._engine.make_room(container, there.spec.memory_mib)
        return await super().save(guest, at, image)

    async def close(self) -> None:
        """See `Driver.close`."""
        await super().close()
        with contextlib.suppress(DriverError):
            await self._engine.sweep()
        self._engine.close()

    @property
    def house(self) -> House:
        """Containers."""
        return self._enter

    async def _enter(
        self, spec: GuestSpec, image: Path | None, argv: list[str], env: dict[str, str], folder: Path,
        on_output: Callable[[bytes], None],
    ) -> ContainerChild:  # fmt: skip
        if self._container_caps is None:
            raise DriverError("the driver is not open")
        container = await self._engine.make(spec, image, argv, env, folder)
        self._container_caps.house(spec.guest, container)
        return ContainerChild(self._engine, container, await self._engine.start(container), on_output)
