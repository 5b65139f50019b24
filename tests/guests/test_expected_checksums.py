"""The expected result of a task is computed without its work; a guest with another result has failed."""

from __future__ import annotations

import asyncio
import itertools
import threading
from dataclasses import asdict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.guests.twins import expected, task
from support.live import ENDLESS_UNITS, HANG_S

from node_agent.drivers.protocol import DriverEvent
from node_agent.programs.expected import expected_checksum, message_digest
from node_agent.programs.task import TOPOLOGIES
from node_agent.verifier import CORE_FRAC, Pace, Verifier
from testbed.bus.messages import GuestSpec, ProgramSpec


@given(
    st.integers(1, 60), st.integers(1, 30), st.integers(1, 3), st.integers(1, 6), st.sampled_from(TOPOLOGIES),
    st.sampled_from(["uniform", "1/i", "drift:1", "drift:3"]), st.integers(8, 70), st.sampled_from([1, 20, 1 << 16]),
    st.data(),
)  # fmt: skip
def test_it_is_what_the_work_itself_comes_to(
    units, step, workers, ranks, topology, imbalance, message_bytes, words_at_once, data
):  # fmt: skip
    one = task(
        name="patterns", work_units=units, units_per_iteration=step, workers=workers, ranks=ranks,
        rank=data.draw(st.integers(0, ranks - 1)), topology=topology, imbalance=imbalance,
        message_bytes=message_bytes,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("node_agent.programs.expected._WORDS_AT_ONCE", words_at_once)
        assert expected_checksum(one) == expected(one)[0]


@given(
    st.integers(1, 200), st.integers(1, 30), st.integers(1, 3), st.sampled_from(["uniform", "1/i"]),
    st.sampled_from(["1", "0.5", "1,0.25@0.5", "0.0001,1@0.2,0.3@0.201,0.9999@0.99"]), st.integers(0, 2),
)  # fmt: skip
def test_it_is_also_with_a_profile(units, step, workers, imbalance, profile, rank):
    one = task(
        name="patterns", work_units=units, units_per_iteration=step, workers=workers, ranks=3, rank=rank,
        imbalance=imbalance, profile=profile,
    )  # fmt: skip
    assert expected_checksum(one) == expected(one)[0]


def spec_of(one) -> GuestSpec:
    fields = asdict(one)
    names = ProgramSpec.__struct_fields__
    return GuestSpec(
        guest=one.guest, run=one.run, job=one.job, task=one.task, memory_mib=one.memory_mib, cpu_cores=1.0,
        program=msgspec.convert({name: fields[name] for name in names}, ProgramSpec),
    )  # fmt: skip


def test_a_guest_is_verified_or_fails():
    one = task(work_units=10**7, units_per_iteration=10**6)

    async def outcome(checksum: str, *, forgotten: bool = False) -> DriverEvent:
        verifier = Verifier()
        verifier.begin(spec_of(one))
        progress = DriverEvent("a", "progress", 1, {"units": 3})
        assert await verifier.check(progress) is progress
        if forgotten:
            verifier.forget("a")
        try:
            return await verifier.check(DriverEvent("a", "done", 2, {"units": 10**7, "checksum": checksum}))
        finally:
            verifier.close()

    right = expected_checksum(one)
    assert asyncio.run(outcome(right)).detail == {"units": 10**7, "checksum": right, "verified": True}
    wrong = asyncio.run(outcome("0" * 16))
    assert wrong.event == "failed"
    assert right in wrong.detail["reason"]
    assert asyncio.run(outcome("0" * 16, forgotten=True)).detail == {"units": 10**7, "checksum": "0" * 16}


ENDLESS = task(name="patterns", ranks=2, work_units=ENDLESS_UNITS, units_per_iteration=1)


def test_a_computation_ends_at_once_when_the_agent_does(caplog):
    async def main() -> None:
        verifier = Verifier()
        verifier.begin(spec_of(ENDLESS))
        verifier.close()

    asyncio.run(main())
    for thread in threading.enumerate():
        if thread.name.startswith("expected checksum"):
            thread.join(HANG_S)
            assert not thread.is_alive()
    assert not caplog.records, "a thread reported to the closed event loop"


def test_a_computation_that_nobody_waits_for_rests_most_of_the_time(monkeypatch):
    cpu_s = itertools.count(5.0, 0.002)
    monkeypatch.setattr("node_agent.verifier.time.thread_time", lambda: next(cpu_s))
    pace, rests = Pace(), []
    pace._wanted.wait = rests.append
    assert not any(pace.given_up() for _ in range(10))
    assert rests == [pytest.approx(0.002 / CORE_FRAC - 0.002)] * 9


def test_a_computation_that_somebody_waits_for_does_not_rest():
    pace = Pace()
    pace.want()
    one = task(name="patterns", ranks=2, work_units=10**5, units_per_iteration=1)
    rests = []
    pace._wanted.wait = rests.append
    assert message_digest(one, pace.given_up) is not None
    assert not rests


def test_guests_with_long_work_do_not_hold_up_the_threads_of_others():
    async def main() -> None:
        verifier = Verifier()
        for number in range(50):
            verifier.begin(msgspec.structs.replace(spec_of(ENDLESS), guest=f"g{number}"))
        short = task(work_units=10**7, units_per_iteration=10**6)
        verifier.begin(spec_of(short))
        done = DriverEvent("a", "done", 2, {"units": 10**7, "checksum": expected_checksum(short)})
        assert (await verifier.check(done)).detail["verified"]
        assert await asyncio.to_thread(lambda: "free") == "free"
        verifier.close()

    asyncio.run(asyncio.wait_for(main(), HANG_S))
