"""Runs in virtual time to which an operator gives orders."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from testbed.control.order_messages import Answer, Request
from testbed.control.orders import Orders


class Operator:
    """Gives each order at a wall second of the replay, after the previous one; `answers` are in this order."""

    def __init__(self, *orders: tuple[float, Request]) -> None:
        self._orders = orders
        self.answers: list[Answer | None] = [None] * len(orders)
        self.orders: Orders | None = None

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Replace the socket of a live run, in the runs inside the block."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("testbed.control.session.taking_orders", self._taking_orders)
            yield

    @contextlib.asynccontextmanager
    async def _taking_orders(self, orders: Orders, _run: Path, *, dry: bool) -> AsyncIterator[None]:
        assert dry
        self.orders = orders
        self._given = [asyncio.Event() for _ in self._orders]
        tasks = [
            asyncio.create_task(self._give(number, at_s, request))
            for number, (at_s, request) in enumerate(self._orders)
        ]
        try:
            yield
        finally:
            await asyncio.sleep(0)  # lets pending answers arrive
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(ended, Exception):
                    raise ended

    async def _give(self, number: int, at_s: float, request: Request) -> None:
        await asyncio.sleep(at_s)
        if number:  # timers of the same moment fire in any order
            await self._given[number - 1].wait()
        assert self.orders is not None
        self._given[number].set()
        self.answers[number] = await self.orders.carry_out(request, "user 0, process 1")


def of_kind(journal: Sequence[dict], kind: str) -> list[dict]:
    return [entry for entry in journal if entry["kind"] == kind]
