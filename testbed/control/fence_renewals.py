"""Renews the fences of the guests of a run, one command per node."""

from __future__ import annotations

import asyncio
import contextlib

from testbed.bus.messages import RenewFences
from testbed.control.cluster import Cluster
from testbed.errors import TestbedError
from testbed.lab.fences import FenceBook
from testbed.lab.replies import Nodes

RENEWALS = 4  # per duration of a fence


class FenceRenewals:
    """Sends periodic renewals to the nodes that can be commanded, for the guests that should run there."""

    def __init__(self, cluster: Cluster, nodes: Nodes, book: FenceBook) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._book = book
        self._every_s = book.fence_s / RENEWALS
        self._sending: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Renew until cancelled."""
        try:
            while True:
                for node, guests in self._guests().items():
                    if node not in self._sending:  # otherwise the node has not answered the last renewal yet
                        task = asyncio.create_task(self._renew(node, guests), name=f"renew fences of node {node}")
                        self._sending[node] = task
                await asyncio.sleep(self._every_s)
        finally:
            for task in list(self._sending.values()):
                task.cancel()
            await asyncio.gather(*self._sending.values(), return_exceptions=True)

    def _guests(self) -> dict[int, tuple[str, ...]]:
        """Return the guests by node, of the nodes that can be commanded."""
        found: dict[int, tuple[str, ...]] = {}
        for live in self._cluster.active():
            if live.state.withdrawn:
                continue
            for spec in live.specs:
                for node in live.state.places(spec.task):
                    if self._cluster.reachable(node):
                        found[node] = (*found.get(node, ()), spec.guest)
        return found

    async def _renew(self, node: int, guests: tuple[str, ...]) -> None:
        try:
            fence = self._book.grant(node, guests)
            if fence is not None:
                with contextlib.suppress(TestbedError):  # the next renewal may arrive
                    await self._nodes.call(node, RenewFences(fence=fence, guests=guests), self._every_s)
        finally:
            del self._sending[node]
