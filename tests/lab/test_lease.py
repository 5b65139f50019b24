"""One controller drives a lab at a time, on a bus within this process and in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from testbed.bus import topics
from testbed.bus.lease import LeaseGuard, token_digest
from testbed.bus.memory import MemoryHub
from testbed.bus.messages import Lease, decode
from testbed.bus.outbox import Outbox, Parcel
from testbed.bus.protocol import FullError, Message
from testbed.errors import UserError
from testbed.lab.lease import LeaseTakenError, hold_lease
from testbed.lab.virtual_time import run_in_virtual_time

TTL_S = 900.0  # virtual seconds; the wall clock judges a retained record, and must not reach this


class Lab:
    """A hub, and the lease of the lab `t` as its agents see it."""

    def __init__(self) -> None:
        self.hub = MemoryHub()
        self.guard = LeaseGuard(asyncio.get_running_loop().time)

    async def follow(self, bus: object) -> None:
        async def hear(topic: str, payload: bytes) -> None:
            self.guard.hear(topic, payload)

        await bus.subscribe(topics.release_topic("t", topics.ANY), hear)
        await bus.subscribe(topics.lease_topic("t"), hear)

    def retained(self) -> Lease:
        return decode(Lease, self.hub.retained[topics.lease_topic("t")].payload)

    async def drive(self, name: str, ends: asyncio.Event, *, force: bool = False) -> None:
        async with self.hub.client(name) as bus, hold_lease(bus, "t", name, TTL_S, force=force, party=name):
            await ends.wait()


async def until(there: Callable[[], bool]) -> None:
    while not there():  # noqa: ASYNC110  # a guard sets no event
        await asyncio.sleep(0.01)


def test_a_lab_is_held_as_long_as_it_is_driven_and_then_free() -> None:
    async def main() -> None:
        lab = Lab()
        async with lab.hub.client("agent") as bus:
            await lab.follow(bus)
            ends = asyncio.Event()
            driving = asyncio.create_task(lab.drive("one", ends))
            await asyncio.sleep(5 * TTL_S)
            assert lab.guard.allows("one")
            assert "one" not in lab.retained().digest, "the token itself is not published"
            told = r"driven by .*@.*lease ends in \d+ s.*testbed lab take SCENARIO --force"
            with pytest.raises(UserError, match=told):
                await lab.drive("two", ends)
            assert lab.guard.allows("one")
            ends.set()
            await driving
            assert not lab.guard.live
            await lab.drive("two", ends)

    run_in_virtual_time(main())


class FullOutbox(Outbox):
    """A bus that accepts no messages while it is `full`."""

    full = False

    def put(self, message: Message) -> Parcel:
        if self.full:
            raise FullError(f"{message.topic}: 10000 messages wait for the broker already: this one is refused")
        return super().put(message)


def test_a_renewal_for_which_the_outbox_is_full_is_made_later(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        lab, outbox = Lab(), FullOutbox(10_000, 1)
        async with lab.hub.client("agent") as bus, lab.hub.client("one") as own:
            await lab.follow(bus)
            own._outbox = outbox
            own.lose()  # so that its sender takes messages from the other outbox
            lab.hub.resume("one")
            async with hold_lease(own, "t", "one", TTL_S, party="one"):
                for _ in range(5):
                    outbox.full = True
                    await asyncio.sleep(TTL_S / 2)
                    outbox.full = False
                    await asyncio.sleep(TTL_S / 2)
                    assert lab.guard.allows("one")
            assert "lease" in caplog.text

    run_in_virtual_time(main())


def test_a_broker_that_forgets_the_lease_is_told_again_at_the_next_connection() -> None:
    async def main() -> None:
        lab, ends = Lab(), asyncio.Event()
        driving = asyncio.create_task(lab.drive("one", ends))
        await until(lambda: topics.lease_topic("t") in lab.hub.retained)
        for _ in range(3):
            lab.hub.drop("one")
            lab.hub.retained.clear()
            lab.hub.resume("one")
            begin_s = asyncio.get_running_loop().time()
            await until(lambda: topics.lease_topic("t") in lab.hub.retained)
            assert asyncio.get_running_loop().time() - begin_s < TTL_S / 10, "virtual time: earlier than a renewal"
        ends.set()
        await driving

    run_in_virtual_time(main())


def test_a_controller_that_was_cut_off_does_not_take_back_a_lab_by_its_return() -> None:
    async def main() -> None:
        lab, ends = Lab(), asyncio.Event()
        loser = asyncio.create_task(lab.drive("one", ends))
        await until(lambda: topics.lease_topic("t") in lab.hub.retained)
        lab.hub.drop("one")
        winner = asyncio.create_task(lab.drive("two", ends, force=True))
        await until(lambda: lab.retained().digest == token_digest("two"))
        lab.hub.resume("one")
        with pytest.raises(LeaseTakenError):
            await loser
        assert lab.retained().digest == token_digest("two")
        ends.set()
        await winner

    run_in_virtual_time(main())


def test_of_two_that_begin_at_once_one_drives() -> None:
    async def main() -> None:
        lab = Lab()
        ends = asyncio.Event()
        both = [asyncio.create_task(lab.drive(name, ends)) for name in ("one", "two")]
        await asyncio.sleep(2 * TTL_S)
        ends.set()
        outcomes = await asyncio.gather(*both, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {type(None), UserError}

    run_in_virtual_time(main())


def test_a_lab_that_is_taken_ends_the_run_that_drove_it() -> None:
    async def main() -> None:
        lab = Lab()
        async with lab.hub.client("agent") as bus:
            await lab.follow(bus)
            first, second = asyncio.Event(), asyncio.Event()
            loser = asyncio.create_task(lab.drive("one", first))
            await until(lambda: lab.guard.allows("one"))
            winner = asyncio.create_task(lab.drive("two", second, force=True))
            with pytest.raises(LeaseTakenError, match=r"lab 't' was taken by two \(.*@"):
                await loser
            await asyncio.sleep(5 * TTL_S)
            assert lab.guard.allows("two"), "the loser's clean-up does not end the lease"
            second.set()
            await winner
            assert lab.retained().released

    run_in_virtual_time(main())


def test_an_agent_that_comes_between_an_end_by_force_and_the_next_lease_follows_too() -> None:
    async def main() -> None:
        lab = Lab()
        first, second = asyncio.Event(), asyncio.Event()
        loser = asyncio.create_task(lab.drive("one", first))
        await asyncio.sleep(1.0)
        late = LeaseGuard(asyncio.get_running_loop().time)
        async with lab.hub.client("agent") as bus, lab.hub.client("watcher") as watcher:

            async def hear(topic: str, payload: bytes) -> None:
                late.hear(topic, payload)

            async def join(topic: str, payload: bytes) -> None:
                if not joined.done():
                    joined.set_result(None)  # receives the retained record of the first, then all others
                    late.hear(topics.lease_topic("t"), lab.hub.retained[topics.lease_topic("t")].payload)
                    await bus.subscribe(topics.lease_topic("t"), hear)
                    await bus.subscribe(topics.release_topic("t", topics.ANY), hear)

            joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            await watcher.subscribe(topics.release_topic("t", topics.ANY), join)
            winner = asyncio.create_task(lab.drive("two", second, force=True))
            with pytest.raises(LeaseTakenError):
                await loser
            await asyncio.sleep(TTL_S / 2)
            assert late.allows("two")
            second.set()
            await winner

    run_in_virtual_time(main())


def test_the_lease_of_a_controller_that_died_can_be_taken_once_it_has_run_out() -> None:
    async def main() -> None:
        lab = Lab()
        async with lab.hub.client("agent") as bus:
            await lab.follow(bus)
            ends = asyncio.Event()
            driving = asyncio.create_task(lab.drive("one", ends))
            await until(lambda: lab.guard.allows("one"))
            lab.hub.drop("one")
            await asyncio.sleep(TTL_S)
            assert lab.guard.run_out()
            lab.hub.retained.clear()  # the record would expire by the wall clock, which stands still here
            second = asyncio.Event()
            next_one = asyncio.create_task(lab.drive("two", second))
            await until(lambda: lab.guard.allows("two"))
            lab.hub.resume("one")
            with pytest.raises(LeaseTakenError):
                await driving
            assert lab.guard.allows("two")
            second.set()
            await next_one

    run_in_virtual_time(main())
