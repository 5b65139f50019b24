"""Samples on time, cap changes on time, and replies that the bus can carry."""

from __future__ import annotations

import asyncio
import threading
import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.live import HANG_S

from node_agent.drivers.protocol import DriverError, Reading
from node_agent.watch import check, watch
from testbed.bus.messages import MAX_WATCH_SAMPLES, CapChange, Command, Watch, decode, encode
from testbed.lab.virtual_time import run_in_virtual_time


async def no_cap(guest: str, cap_cores: float) -> float:
    raise AssertionError(f"nobody asked for a cap of {cap_cores} of {guest}")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"guests": ()}, r"guests = \[\]: expected at least one"),
        ({"guests": ("a", "a")}, "each once"),
        ({"guests": ("a", "b", "c"), "every_s": 0.005, "for_s": 120.0}, r"72003 samples: .* as with every_s = 0\.016"),
        ({"caps": (CapChange(after_s=3.0, caps={"a": 1.0}),)}, "after 3 s: expected at most 2 s"),
        ({"caps": (CapChange(after_s=1.0, caps={"a": 1.0, "x": 1.0}),)}, "a cap change of x: expected only guests"),
    ],
)
def test_a_watch_that_makes_no_sense_is_refused(change, complaint) -> None:
    with pytest.raises(DriverError, match=complaint):
        check(msgspec.structs.replace(Watch(guests=("a",), every_s=0.1, for_s=2.0), **change))


@given(st.integers(1, 40), st.floats(0.005, 1.0), st.floats(0.01, 120.0))
def test_what_a_refusal_proposes_is_not_refused(guests, every_s, for_s) -> None:
    action = Watch(guests=tuple(f"g{index}" for index in range(guests)), every_s=every_s, for_s=for_s)
    try:
        check(action)
    except DriverError as error:
        check(msgspec.structs.replace(action, every_s=float(str(error).rpartition(" ")[2])))


@settings(max_examples=25)
@given(st.floats(0.005, 0.5), st.integers(1, 200), st.lists(st.floats(0.0, 1.0), max_size=4))
def test_virtual_samples_and_changes_are_on_time(every_s, steps, parts) -> None:
    for_s = min(120.0, every_s * steps)
    caps = tuple(CapChange(after_s=part * for_s, caps={"a": 0.5 + part}) for part in parts)
    action = Watch(guests=("a",), every_s=every_s, for_s=for_s, caps=caps)

    async def main() -> None:
        now_s = asyncio.get_running_loop().time
        begin_s = now_s()

        async def set_cap(guest: str, cap_cores: float) -> float:
            assert guest == "a"
            await asyncio.sleep(0.001)
            return cap_cores

        meter = lambda: Reading(now_s() - begin_s, int(1e6 * (now_s() - begin_s)))  # noqa: E731  # one expression
        found = await watch(action, {"a": meter}, set_cap, in_loop=True)
        assert found["t_s"] == pytest.approx([every_s * step for step in range(len(found["t_s"]))], abs=2e-6)
        assert len(found["t_s"]) in (steps, steps + 1)  # the last may be late by a rounding error
        assert found["cpu_s"]["a"] == pytest.approx(found["t_s"], abs=2e-6)
        assert [change["caps"]["a"] for change in found["cap_changes"]] == sorted(0.5 + part for part in parts)
        for change, part in zip(found["cap_changes"], sorted(parts), strict=True):
            assert change["begin_s"] >= part * for_s - 2e-6
            assert change["end_s"] == pytest.approx(change["begin_s"] + 0.001, abs=2e-6)

    run_in_virtual_time(main())


def test_samples_are_taken_in_a_thread_while_the_loop_is_kept_busy() -> None:
    threads: list[int] = []
    taken = threading.Semaphore(0)

    def meter() -> Reading:
        threads.append(threading.get_ident())
        taken.release()
        return Reading(time.process_time(), 0)

    async def main() -> dict[str, object]:
        watching = asyncio.create_task(watch(Watch(guests=("a",), every_s=0.01, for_s=120.0), {"a": meter}, no_cap))
        assert await asyncio.to_thread(taken.acquire, timeout=HANG_S)
        for _ in range(5):
            assert taken.acquire(timeout=HANG_S)  # the point: the loop is blocked
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        return await watch(Watch(guests=("a",), every_s=0.01, for_s=0.2), {"a": meter}, no_cap)

    found = asyncio.run(main())
    assert threading.get_ident() not in threads
    assert found["t_s"] == sorted(set(found["t_s"]))


def test_a_watch_that_is_cancelled_stops_sampling() -> None:
    sampling: list[threading.Thread] = []
    began = threading.Event()

    def meter() -> Reading:
        sampling.append(threading.current_thread())
        began.set()
        return Reading(0.0, 0)

    async def main() -> None:
        watching = asyncio.create_task(watch(Watch(guests=("a",), every_s=0.005, for_s=120.0), {"a": meter}, no_cap))
        assert await asyncio.to_thread(began.wait, HANG_S)
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
        await asyncio.to_thread(sampling[0].join, 60.0)  # half of the duration of the sampling
        assert not sampling[0].is_alive()

    asyncio.run(main())


def test_a_command_is_bounded_by_its_record() -> None:
    def read(**fields: object) -> object:
        action = {"kind": "watch", "guests": ["a"], "every_s": 0.005, "for_s": 120, **fields}
        raw = {"v": 1, "id": "a", "lease": "l", "reply_to": "r", "deadline_s": 1, "action": action}
        return decode(Command, msgspec.json.encode(raw)).action

    assert read() == Watch(guests=("a",), every_s=0.005, for_s=120.0)
    for fields, complaint in (({"every_s": 0.004}, "every_s"), ({"for_s": 121}, "for_s"), ({"for_s": 0}, "for_s")):
        with pytest.raises(Exception, match=rf"at `\$.action.{complaint}`"):
            read(**fields)
    largest = Watch(guests=("a",), every_s=0.005, for_s=119.99)
    check(largest)
    assert int(largest.for_s / largest.every_s) + 1 <= MAX_WATCH_SAMPLES
    assert encode(Command(id="1", lease="l", reply_to="r", deadline_s=1.0, action=largest))
