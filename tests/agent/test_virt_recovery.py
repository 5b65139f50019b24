"""A silent guest: the host attaches again while the machine works, and otherwise gives up with a stated reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.agent.fake_guest import FakeGuest, obey
from support.live import HANG_S, until

from node_agent.drivers.protocol import DriverEvent
from node_agent.guests.wire import Frame
from testbed.bus.messages import GuestSpec, ProgramSpec

pytest.importorskip("libvirt", reason="libvirt-python is not installed: pip install 'dfrs-testbed[libvirt]'")

from node_agent.drivers.virt.guest import State, VirtualGuest
from node_agent.drivers.virt.platform import DomainSample, Timeouts
from node_agent.drivers.virt.recovery import CONFIRMED_AFTER_S, WORKED_S, Fine, GiveUp, Reattach, Recovery

PATIENCE = Timeouts(silence_s=60.0, reattach_s=20.0, reattachments=3)
SPEC = GuestSpec(
    guest="dfrs-t-j0-t0", run="t", job=0, task=0, cpu_cores=1.0, memory_mib=128,
    program=ProgramSpec(name="eatcpu", work_units=9, units_per_iteration=1, seed=5),
)  # fmt: skip


# --- the judgement


def judged(recovery: Recovery, begin_s: int, end_s: int, cores: float) -> list[tuple[int, Reattach | GiveUp]]:
    """Return the verdict of one sample per second, of a machine that uses the given number of cores."""
    found = ((second, recovery.sample(float(second), second * cores)) for second in range(begin_s, end_s))
    return [(second, verdict) for second, verdict in found if not isinstance(verdict, Fine)]


def test_a_machine_that_works_is_attached_to_again_and_at_last_has_made_no_progress():
    found = judged(Recovery(0.0, PATIENCE), 0, 110, 0.1)
    assert [(second, type(verdict)) for second, verdict in found[:4]] == [
        (26, Reattach), (52, Reattach), (78, Reattach), (104, GiveUp)
    ]  # fmt: skip
    assert [verdict.silent_s for _, verdict in found[:3] if isinstance(verdict, Reattach)] == [26.0, 52.0, 78.0]
    assert "no progress: no new work for 104 s" in found[3][1].reason
    assert found[3][1].code == "no-progress"
    assert "attached to again 3 times" in found[3][1].reason


def test_a_machine_that_does_not_work_is_never_attached_to_again():
    (second, verdict), *_ = judged(Recovery(0.0, PATIENCE), 0, 80, 0.0)
    assert (second, verdict) == (66, GiveUp("it has not answered for 66 s"))


def test_a_machine_that_stops_after_it_was_attached_to_has_not_answered():
    recovery = Recovery(0.0, PATIENCE)
    assert [second for second, _ in judged(recovery, 0, 30, 0.1)] == [26]
    found = [(second, recovery.sample(float(second), 2.6)) for second in range(30, 67)]
    assert [one for one in found if one[1] != Fine()] == [(66, GiveUp("it has not answered for 66 s"))]


def test_new_work_forgives_what_was_before_and_old_work_does_not():
    recovery = Recovery(0.0, PATIENCE)
    begin_s = 0
    for units, attempts in ((1, 1), (1, 1), (1, 2), (2, 3), (2, 1)):  # reported after an attempt; attempts by then
        assert [type(verdict) for _, verdict in judged(recovery, begin_s, begin_s + 27, 0.1)] == [Reattach]
        assert recovery.attempts == attempts
        assert recovery.told(begin_s + 27.0, units) == 27.0
        begin_s += 27
    assert recovery.told(begin_s + 1.0, 2) == 0.0  # not silent any more
    assert recovery.attempts == 1


def test_who_is_only_now_expected_to_tell_is_not_blamed_for_before():
    recovery = Recovery(0.0, PATIENCE)
    assert judged(recovery, 0, 24, 0.1) == []
    recovery.expected(100.0)  # held meanwhile
    assert [second for second, _ in judged(recovery, 100, 140, 0.1)] == [126]
    recovery.expected(130.0)  # attached, but the guest has not reported anything yet
    assert recovery.told(131.0, 1) == 31.0


@given(st.floats(1.0, 10**6), st.floats(0.0, 10**5))
def test_an_agent_that_stood_still_blames_nobody(stood_s: float, cpu_s: float):
    recovery = Recovery(0.0, PATIENCE)
    assert recovery.sample(1.0, 0.0) == Fine()
    assert recovery.sample(1.0 + stood_s, cpu_s) == Fine()
    recovery.told(1.1 + stood_s, 0)  # data that waited to be read
    assert recovery.sample(1.0 + stood_s + CONFIRMED_AFTER_S, cpu_s + WORKED_S) == Fine()
    assert recovery.attempts == 0


# --- a guest, with its domain and its end of the channel played by the test


class FakeDomain:
    def XMLDesc(self) -> str:  # noqa: N802  # libvirt's name
        return "<domain/>"


class FakeHypervisor:
    """A platform with one domain, until that is destroyed."""

    there = True

    def file(self, path: Path) -> Path:
        return path

    async def find(self, _name: str, _deadline_s: float) -> object:
        return FakeDomain() if self.there else None

    find_own = find

    async def on_domain(self, _name: str, _deadline_s: float, function: Callable[[FakeDomain], object]) -> object:
        try:
            return function(FakeDomain())
        except AttributeError:  # destroy()
            self.there = False
            return None


class Machine:
    """Virtual CPUs that use `per_look_s` between two samples."""

    def __init__(self, per_look_s: float) -> None:
        self._per_look_s = per_look_s
        self._cpu_s = 0.0

    def seen(self) -> DomainSample:
        self._cpu_s += self._per_look_s
        return DomainSample(1.0, self._cpu_s, 64.0)


@dataclass
class FakePlatform:
    path: Path
    machine: Machine
    timeouts: Timeouts

    def console_path(self, _guest: str) -> Path:
        return self.path.with_suffix(".console")

    def control_path(self, _xml: str) -> Path:
        return self.path

    def vcpus(self, _guest: str, _hypervisor: object) -> Machine:
        return self.machine


Play = Callable[[FakeGuest, VirtualGuest, list[DriverEvent]], Coroutine[None, None, None]]


def with_machine(tmp_path: Path, per_look_s: float, answer: Callable[[FakeGuest, Frame], None], play: Play) -> None:
    """Run a test with a working guest, and an agent with short timeouts."""

    async def main() -> None:
        told: list[DriverEvent] = []
        timeouts = Timeouts(order_s=HANG_S, silence_s=0.2, reattach_s=0.05, reattachments=2)
        async with FakeGuest(tmp_path / "ctl", answer).open() as end:
            platform = FakePlatform(tmp_path / "ctl", Machine(per_look_s), timeouts)
            guest = VirtualGuest(SPEC, 1.0, FakeHypervisor(), platform, told.append, lambda _guest: None, 1.0)
            try:
                await guest.appear()
                await guest.attach(HANG_S)
                guest.state = State.RUNNING
                await play(end, guest, told)
            finally:
                guest.detach()

    asyncio.run(main())


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Confirm a silence soon, and do not repeat orders on a machine that pauses."""
    monkeypatch.setattr("node_agent.drivers.virt.channel.REPEAT_AFTER_S", HANG_S)
    monkeypatch.setattr("node_agent.drivers.virt.channel.REOPEN_AFTER_S", HANG_S)
    monkeypatch.setattr("node_agent.drivers.virt.recovery.CONFIRMED_AFTER_S", 0.02)


def after_hosts(hosts: int) -> Callable[[FakeGuest, Frame], None]:
    """Answer every host, but report work only from a given connection on."""

    def answer(guest: FakeGuest, frame: Frame) -> None:
        obey(guest, frame)
        if guest.hosts >= hosts:
            guest.say("progress", ("units", 7), ("mono_ns", 1))

    return answer


@pytest.mark.usefixtures("_impatient")
def test_a_mute_guest_at_work_is_healed_and_that_is_told(tmp_path: Path):
    async def play(end: FakeGuest, guest: VirtualGuest, told: list[DriverEvent]) -> None:
        def healed() -> bool:
            guest.sample()  # the agent does that each second
            return any(driver_event.event != "progress" for driver_event in told)

        await until(healed, "word of a guest that was mute")
        assert end.hosts == 2
        assert [driver_event.event for driver_event in told] == ["healed", "progress"]
        assert told[0].detail["attachments"] == 1
        assert told[0].detail["silent_s"] >= 0.05
        assert guest.sample().units_done == 7

    with_machine(tmp_path, 1.0, after_hosts(2), play)


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize(("per_look_s", "hosts", "reason"), [(1.0, 3, "no progress"), (0.0, 1, "has not answered")])
def test_a_mute_guest_that_cannot_be_healed_fails_for_a_reason(
    tmp_path: Path, per_look_s: float, hosts: int, reason: str
):
    async def play(end: FakeGuest, guest: VirtualGuest, told: list[DriverEvent]) -> None:
        def over() -> bool:
            guest.sample()
            return bool(told)

        await until(over, "word of a guest that is mute")
        (failed,) = told
        assert failed.event == "failed"
        assert reason in str(failed.detail["reason"])
        assert failed.detail["code"] == ("no-progress" if reason == "no progress" else "guest-failed")
        assert end.hosts == hosts
        assert guest.state is State.ENDED

    with_machine(tmp_path, per_look_s, after_hosts(10**6), play)


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("state", [State.HELD, State.SAVING, State.MIGRATING, State.STARTING])
def test_a_guest_that_need_not_tell_is_not_judged(tmp_path: Path, state: State):
    async def play(end: FakeGuest, guest: VirtualGuest, told: list[DriverEvent]) -> None:
        guest.state = state
        loop = asyncio.get_running_loop()
        begin_s = loop.time()

        def long_after() -> bool:
            guest.sample()
            return loop.time() - begin_s > 4 * guest._timeouts.silence_s

        await until(long_after, "time")
        assert (end.hosts, told, guest.state) == (1, [], state)

    with_machine(tmp_path, 1.0, after_hosts(10**6), play)
