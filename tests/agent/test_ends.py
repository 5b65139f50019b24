"""The agent reports ends of guests again after each loss of the bus, each of them once and in order."""

from __future__ import annotations

import asyncio

import pytest

from node_agent.ends import Ends


class Wire:
    """A bus that records published messages, and can break."""

    def __init__(self) -> None:
        self.told: list[bytes] = []
        self.broken_after: int | None = None
        self.heard = asyncio.Event()

    async def publish(self, end: bytes) -> None:
        if self.broken_after is not None and len(self.told) >= self.broken_after:
            raise ConnectionError
        self.told.append(end)
        self.heard.set()


def opened() -> tuple[Ends, Wire]:
    ends, wire = Ends(), Wire()
    ends.open(wire.publish)
    return ends, wire


async def told(ends: Ends, *names: bytes) -> None:
    for name in names:
        await ends.tell(name)


def test_without_a_loss_nothing_is_told_again() -> None:
    async def main() -> None:
        ends, wire = opened()
        await told(ends, b"a", b"b")
        await ends.again()
        assert wire.told == [b"a", b"b"]

    asyncio.run(main())


def test_after_a_loss_all_are_told_again_in_order_and_once() -> None:
    async def main() -> None:
        ends, wire = opened()
        await told(ends, b"a", b"b")
        ends.lost()
        await asyncio.gather(ends.again(), ends.again())  # two concurrent commands
        assert wire.told == [b"a", b"b", b"a", b"b"]

    asyncio.run(main())


def test_a_loss_while_they_are_told_again_begins_it_anew() -> None:
    async def main() -> None:
        ends, wire = opened()
        await told(ends, b"a", b"b")
        ends.lost()
        wire.broken_after = 3
        with pytest.raises(ConnectionError):
            await ends.again()
        wire.broken_after = None
        await ends.again()
        assert wire.told == [b"a", b"b", b"a", b"a", b"b"]

    asyncio.run(main())


def test_ends_of_an_earlier_lease_are_forgotten_and_old_ones_too() -> None:
    async def main() -> None:
        ends, wire = opened()
        await told(ends, b"a")
        ends.forget()
        names = [b"%d" % number for number in range(1500)]
        await told(ends, *names)
        wire.told.clear()
        ends.lost()
        await ends.again()
        assert wire.told == names[500:]

    asyncio.run(main())


def barrier(number: int) -> dict[str, object]:
    return {"session": "s", "number": number, "keys": {}}


def test_the_barrier_that_a_guest_waits_in_is_told_again_until_it_has_passed() -> None:
    async def again(ends: Ends, wire: Wire) -> list[bytes]:
        wire.told.clear()
        ends.lost()
        await ends.again()
        return wire.told

    async def main() -> None:
        ends, wire = opened()
        await told(ends, b"a")
        await ends.tell_barrier("g1", barrier(1), b"g1 in 1")
        await ends.tell_barrier("g2", barrier(1), b"g2 in 1")
        assert wire.told == [b"a", b"g1 in 1", b"g2 in 1"]
        assert await again(ends, wire) == [b"a", b"g1 in 1", b"g2 in 1"]
        ends.passed("g1", "another", 1)
        ends.passed("g1", "s", 0)
        assert await again(ends, wire) == [b"a", b"g1 in 1", b"g2 in 1"]
        ends.passed("g1", "s", 1)
        await ends.tell_barrier("g1", barrier(2), b"g1 in 2")
        ends.passed("g1", "s", 1)  # the pass that arrived twice
        ends.gone("g2")
        ends.gone("nobody")
        assert await again(ends, wire) == [b"a", b"g1 in 2"]
        ends.forget()
        assert await again(ends, wire) == []

    asyncio.run(main())


def test_without_a_command_they_wait_until_somebody_listens() -> None:
    async def main() -> None:
        ends, wire = opened()
        await told(ends, b"a")
        wire.told.clear()
        wire.heard.clear()
        asked, listens = asyncio.Event(), asyncio.Event()

        async def ready() -> None:
            asked.set()
            await listens.wait()

        running = asyncio.create_task(ends.run(ready))
        ends.lost()
        await asked.wait()
        assert wire.told == []
        listens.set()
        await wire.heard.wait()
        assert wire.told == [b"a"]
        running.cancel()
        await asyncio.wait((running,))

    asyncio.run(main())
