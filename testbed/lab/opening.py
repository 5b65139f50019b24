"""Opens a lab: starts broker and agents, takes the lease, waits for empty nodes, and measures a core's speed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import TracebackType

from testbed.errors import UserError, nearest
from testbed.lab.blocking import BlockingLab, enter_blocking
from testbed.lab.bring_up import BringUp, live_lab
from testbed.lab.core_speed import measure_core
from testbed.lab.ended_by import ended_by_error_of
from testbed.lab.lab import Lab
from testbed.lab.leased import lease_scenario
from testbed.packaged import find_scenario
from testbed.scenario.schema import Scenario, load_lab


def open_lab(
    file: str | Path | Scenario,
    *,
    nodes: Sequence[str] = (),
    folder: Path | None = None,
    bring_up: BringUp = live_lab,
) -> LabOpening:
    """Return a context that opens a lab: for `async with`, and for `with` in notebooks and other blocking code.

    `file` is a scenario file, in which name, policy and workload are optional, or the name of a packaged scenario.
    `nodes` are the names of the nodes to use, by default all. Agents that are started here keep their logs and images
    in `folder`, by default a temporary one. `bring_up` starts broker and agents.

    Inside the block this process holds the lease of the lab: no other controller can command its nodes. At the end the
    lease is released, whereupon agents destroy all remaining guests; agents and a broker that were started here end.
    Raises `UserError` when the lab is not up, is driven by another controller, or holds guests of a dead controller.
    """
    return LabOpening(file, tuple(nodes), folder, bring_up)


class LabOpening:
    """A lab that is open inside a block: `async with` gives a `Lab`, `with` a `BlockingLab`."""

    def __init__(
        self, file: str | Path | Scenario, nodes: tuple[str, ...], folder: Path | None, bring_up: BringUp
    ) -> None:
        self._file = file
        self._nodes = nodes
        self._folder = folder
        self._bring_up = bring_up
        self._left = contextlib.AsyncExitStack()
        self._blocking_left = contextlib.ExitStack()

    async def __aenter__(self) -> Lab:
        return await self._left.enter_async_context(_opened(self._file, self._nodes, self._folder, self._bring_up))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._left.__aexit__(kind, error, trace)

    def __enter__(self) -> BlockingLab:
        opening = _opened(self._file, self._nodes, self._folder, self._bring_up)
        return self._blocking_left.enter_context(enter_blocking(opening))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._blocking_left.__exit__(kind, error, trace)


@contextlib.asynccontextmanager
async def _opened(
    file: str | Path | Scenario, nodes: tuple[str, ...], folder: Path | None, bring_up: BringUp
) -> AsyncIterator[Lab]:
    scenario = file if isinstance(file, Scenario) else load_lab(find_scenario(file))
    known = [node.name for node in scenario.nodes]
    if strange := [name for name in nodes if name not in known]:
        raise UserError(f"node {strange[0]!r}: expected one of {', '.join(known)}{nearest(strange[0], known)}")
    tag = f"{os.getpid() % 65536:04x}{os.urandom(2).hex()}"
    client = f"lab-{tag}"
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dfrs-lab-")))
        async with (
            bring_up(scenario, folder, client) as bus,
            lease_scenario(bus, scenario, client, names=nodes) as leased,
        ):
            fleet = leased.fleet
            fleet.resign()  # measurements while a node is away are invalid
            await leased.ready(folder)
            lab = Lab(scenario, fleet, tag, await measure_core(fleet, scenario.deadlines.command_s))
            watching = asyncio.create_task(fleet.watch(), name="watch nodes")
            try:
                async with ended_by_error_of(watching):
                    yield lab
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
