"""The required behaviour of every bus, tested on each of them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from support.bus.bus_worlds import KINDS, Mailbox, command_after_lease, run, world

from testbed.bus.client import BusError, Presence

pytestmark = pytest.mark.parametrize("kind", KINDS)

PRESENCE = Presence("lab/node/b", lambda: b"online", b"offline", b"lost")


def test_messages_arrive_once_in_order_and_only_where_they_are_wanted(kind: str) -> None:
    async def scenario() -> None:
        async with world(kind) as w, w.bus("a") as a, w.bus("b") as b:
            one, all_of_x, tree = Mailbox(), Mailbox(), Mailbox()
            await a.subscribe("x/1", one)
            await b.subscribe("x/+", all_of_x)
            await b.subscribe("y/#", tree)
            await asyncio.gather(*(b.publish("x/1", b"%d" % n) for n in range(100)))
            for topic in ("x/2", "x/1/2", "y", "y/1/2", "z"):
                await a.publish(topic, topic.encode())
            await a.publish("x/end", b"end", qos=0)
            numbers = [b"%d" % n for n in range(100)]
            assert await one.count(100) == numbers
            assert await all_of_x.until(lambda got: b"end" in got) == [*numbers, b"x/2", b"end"]
            assert tree.got == [("y", b"y"), ("y/1/2", b"y/1/2")]
            assert one.payloads == numbers

    run(scenario())


def test_retained_messages_greet_later_subscribers_until_cleared(kind: str) -> None:
    async def scenario() -> None:
        async with world(kind) as w, w.bus("a") as a, w.bus("b") as b:
            await a.publish("r/1", b"old", retain=True)
            await a.publish("r/1", b"new", retain=True)
            await a.publish("r/2", b"gone", retain=True)
            await a.publish("r/2", b"", retain=True)
            await a.publish("r/3", b"not retained")
            later = Mailbox()
            await b.subscribe("r/+", later)
            await a.publish("r/4", b"mark")
            await later.until(lambda got: b"mark" in got)
            assert later.got == [("r/1", b"new"), ("r/4", b"mark")]

    run(scenario())


def test_a_failing_handler_is_logged_and_harms_no_other(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with world(kind) as w, w.bus("a") as a:

            async def failing(topic: str, payload: bytes) -> None:
                raise ZeroDivisionError(payload)

            good = Mailbox()
            await a.subscribe("x/+", failing)
            await a.subscribe("x/1", good)
            await a.publish("x/1", b"one")
            await a.publish("x/1", b"two")
            await good.until(lambda got: {b"one", b"two"} <= set(got))

    with caplog.at_level(logging.ERROR):
        run(scenario())
    errors = [record for record in caplog.records if record.name.startswith("testbed")]
    assert "x/1" in errors[0].getMessage()
    assert errors[0].exc_info is not None


def test_handlers_are_called_one_at_a_time(kind: str) -> None:
    async def scenario() -> None:
        async with world(kind) as w, w.bus("a") as a:
            log: list[tuple[str, bytes]] = []
            ended = asyncio.Event()

            async def slow(topic: str, payload: bytes) -> None:
                log.append(("begin", payload))
                for _ in range(5):
                    await asyncio.sleep(0)
                log.append(("end", payload))
                if len(log) == 6:
                    ended.set()

            await a.subscribe("s", slow)
            for payload in (b"1", b"2", b"3"):
                await a.publish("s", payload)
            await ended.wait()
            assert log == [(what, p) for p in (b"1", b"2", b"3") for what in ("begin", "end")]

    run(scenario())


def test_presence_shows_online_farewell_and_last_will(kind: str) -> None:
    async def scenario() -> None:
        async with world(kind) as w, w.bus("a") as a:
            seen, after = Mailbox(), Mailbox()
            await a.subscribe("lab/node/+", seen)
            async with w.bus("b", PRESENCE):
                assert await seen.count(1) == [b"online"]
                await w.cut("b")
                assert await seen.count(2) == [b"online", b"lost"]
                await w.mend("b")
                assert await seen.count(3) == [b"online", b"lost", b"online"]
            assert await seen.count(4) == [b"online", b"lost", b"online", b"offline"]
            await a.subscribe("lab/node/b", after)
            assert (await after.count(1))[-1] == b"offline"

    run(scenario())


def test_farewell_is_said_when_the_task_is_cancelled(kind: str) -> None:
    async def scenario() -> None:
        async with world(kind) as w, w.bus("a") as a:
            seen = Mailbox()
            await a.subscribe("lab/node/+", seen)

            async def client() -> None:
                async with w.bus("b", PRESENCE):
                    await asyncio.Event().wait()

            task = asyncio.create_task(client())
            await seen.until(lambda got: b"online" in got)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await seen.count(2) == [b"online", b"offline"]

    run(scenario())


def test_what_is_sent_to_a_client_while_it_is_away_waits_for_it(kind: str) -> None:
    async def scenario() -> None:
        async with world(kind) as w, w.bus("a") as a, w.bus("b", PRESENCE) as b:
            mail, status = Mailbox(), Mailbox()
            await b.subscribe("to/b", mail)
            await a.subscribe("lab/node/b", status)
            await w.cut("b")
            await status.until(lambda got: b"lost" in got)  # now the broker knows as well
            for number in range(30):
                await a.publish("to/b", b"%d" % number)
            await a.publish("to/b", b"at most once", qos=0)
            assert mail.got == []
            await w.mend("b")
            await a.publish("to/b", b"end")
            assert await mail.until(lambda got: b"end" in got) == [*(b"%d" % n for n in range(30)), b"end"]

    run(scenario())


def test_what_a_client_sends_while_it_is_away_is_sent_later(kind: str) -> None:
    async def scenario() -> None:
        async with world(kind) as w, w.bus("a") as a, w.bus("b") as b:
            mail = Mailbox()
            await a.subscribe("from/b", mail)
            await b.publish("from/b", b"before")
            await w.cut("b")
            await b.publish("from/b", b"stale telemetry", qos=0)
            waiting = [asyncio.create_task(b.publish("from/b", b"%d" % n)) for n in range(40)]
            await asyncio.sleep(0)
            waiting[7].cancel()
            assert not any(task.done() for task in waiting)
            await w.mend("b")
            await asyncio.wait(waiting)
            await b.publish("from/b", b"end")
            expected = [b"before", *(b"%d" % n for n in range(40) if n != 7), b"end"]
            assert await mail.until(lambda got: b"end" in got) == expected

    run(scenario())


def test_each_loss_of_a_connection_is_told_once(kind: str) -> None:
    async def scenario() -> None:
        async with world(kind) as w, w.bus("a") as a:
            losses: list[bool] = []
            a.on_lost = lambda: losses.append(a.connected.is_set())
            for times in (1, 2):
                await w.cut("a")
                assert losses == [False] * times
                await w.mend("a")
            await a.publish("from/a", b"end")
            assert losses == [False, False]

    run(scenario())


def test_a_client_that_starts_again_finds_what_came_meanwhile(kind: str) -> None:
    async def scenario() -> None:
        async with world(kind) as w, w.bus("a") as a:
            async with w.bus("b") as b:
                await b.subscribe("to/b", Mailbox())
            await a.publish("to/b", b"while away")
            async with w.bus("b") as b:
                mail = Mailbox()
                await b.subscribe("to/b", mail)
                assert await mail.count(1) == [b"while away"]

    run(scenario())


def test_too_much_waiting_is_an_error_and_a_closed_bus_too(kind: str) -> None:
    async def scenario() -> None:
        async with world(kind) as w, w.bus("a") as a:
            async with w.bus("b", outbox_limit=3) as b:
                await w.cut("b")
                waiting = [asyncio.create_task(b.publish("t", b"x")) for _ in range(3)]
                await asyncio.sleep(0)
                with pytest.raises(BusError, match="3 messages wait"):
                    await b.publish("t", b"x")
                await w.mend("b")
                await asyncio.gather(*waiting)
                await b.publish("t", b"x")
            with pytest.raises(BusError, match="closed"):
                await b.publish("t", b"x")
            with pytest.raises(BusError, match="closed"):
                await b.subscribe("t", Mailbox())
            with pytest.raises(ValueError, match="wildcards"):
                await a.publish("t/+", b"x")

    run(scenario())


def test_publishing_fails_for_those_who_wait_when_the_bus_closes(kind: str) -> None:
    async def scenario() -> None:
        async with world(kind) as w:
            options: dict[str, Any] = {} if kind == "memory" else {"close_timeout_s": 0.05}
            async with w.bus("b", PRESENCE, **options) as b:
                await w.cut("b")
                waiting = asyncio.create_task(b.publish("t", b"x"))
                await asyncio.sleep(0)
            with pytest.raises(BusError, match="closed"):
                await waiting

    run(scenario())


def test_a_second_client_of_the_same_name_takes_over_and_is_heard(kind: str) -> None:
    async def scenario() -> None:
        options: dict[str, Any] = {} if kind == "memory" else {"close_timeout_s": 0.05}
        async with world(kind) as w, w.bus("a") as a, w.bus("b", **options):
            frozen = getattr(w, "wires", {}).get("b")
            if frozen is not None:
                frozen.freeze()  # otherwise the first one would connect again, and take over in its turn
            async with w.bus("b") as second:
                mail = Mailbox()
                await second.subscribe("to/b", mail)
                await a.publish("to/b", b"hello")
                assert await mail.count(1) == [b"hello"]
                if frozen is not None:
                    frozen.accepts = False

    run(scenario())


def test_what_waited_in_a_session_is_handled_after_what_is_retained(kind: str) -> None:
    """The next client of an id judges earlier commands by the present lease, to which it subscribed first."""

    async def scenario() -> None:
        async with world(kind) as w:
            await command_after_lease(w)

    run(scenario())
