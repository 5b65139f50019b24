"""Caps as drivers report them: the value that was read back and the requested one, also if they differ."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.drivers.caps.duty import DutyCaps
from node_agent.drivers.containers import caps as container_caps
from node_agent.drivers.containers.caps import ContainerCaps
from node_agent.drivers.procs.guest import ProcessGuest
from node_agent.drivers.procs.guest_record import State as ProcessState
from node_agent.drivers.procs.records import ProcessRecords
from node_agent.drivers.protocol import DriverError, DriverEvent
from node_agent.drivers.virt.guest import State as VirtualState
from node_agent.drivers.virt.guest import VirtualGuest
from node_agent.drivers.virt.native import NativePrograms
from node_agent.drivers.virt.platform import DomainSample, Timeouts
from testbed.bus.caps import same_cap
from testbed.bus.messages import GuestSpec, ProgramSpec

WORKERS = 2
SPEC = GuestSpec(
    guest="g", run="t", job=1, task=0, cpu_cores=2.0, memory_mib=64,
    program=ProgramSpec(name="eatcpu", work_units=10**12, units_per_iteration=100, seed=1, workers=WORKERS),
)  # fmt: skip


async def settle() -> None:
    """Let tasks finish that wait for nothing."""
    for _ in range(20):
        await asyncio.sleep(0)


@given(st.floats(0.01, 64), st.floats(0.01, 64), st.integers(1, 64))
def test_a_cap_is_the_same_within_what_rounding_does_and_as_far_as_the_guest_can_use_it(
    wanted: float, found: float, most: int
) -> None:
    assert same_cap(wanted, wanted, most)
    assert same_cap(most, most + wanted, most)  # no cap, and a cap above the maximum use
    assert same_cap(found, wanted, most) == same_cap(min(found, most), min(wanted, most), most)
    if abs(found - wanted) > 0.02 + 0.02 * max(found, wanted) and max(found, wanted) <= most:
        assert not same_cap(found, wanted, most)


# --- processes


class Kernel:
    """A mechanism of caps whose state another program can change; if `deaf`, it ignores new caps."""

    name = "fake"

    def __init__(self) -> None:
        self.found: float | OSError | None = None
        self.deaf = False
        self.sets: list[float | None] = []

    async def set(self, guest: str, cap_cores: float | None) -> float | None:
        del guest
        self.sets.append(cap_cores)
        await asyncio.sleep(0)
        if not self.deaf:
            self.found = cap_cores
        return self.found if isinstance(self.found, float) else None

    def read(self, guest: str) -> float:
        del guest
        if isinstance(self.found, OSError):
            raise self.found
        return WORKERS if self.found is None else self.found


def process_guest(tmp_path: Path, kernel: Kernel, told: list[DriverEvent], cap_cores: float = 0.5) -> ProcessGuest:
    guest = ProcessGuest(
        SPEC, cap_cores, None, tmp_path / "1.sock", tmp_path / "g.log", kernel, ProcessRecords(tmp_path / "records"),
        told.append, lambda _guest: None,
    )  # fmt: skip
    guest._status.state = ProcessState.RUNNING
    return guest


def test_a_process_tells_the_cap_in_force_and_a_drift_is_told_once_and_set_right(tmp_path: Path) -> None:
    async def main() -> None:
        kernel, told = Kernel(), []
        guest = process_guest(tmp_path, kernel, told)
        assert await guest.set_cap(0.5) == 0.5
        sample = guest.sample()
        assert (sample.cap_cores, sample.wanted_cores) == (0.5, 0.5)
        for changed, drifted in ((1.25, 1.25), (None, -1.0)):  # by another program
            told.clear()
            kernel.found, kernel.deaf = changed, False
            sample = guest.sample()
            assert (sample.cap_cores, sample.wanted_cores) == (changed or WORKERS, 0.5)
            guest.sample()
            await settle()
            assert [(one.event, one.detail) for one in told] == [("drift", {"wanted": 0.5, "found": drifted})]
            assert guest.sample().cap_cores == 0.5
        kernel.deaf = True
        with pytest.raises(DriverError, match=r"cap 1\.5 cores was read back as 0\.5"):
            await guest.set_cap(1.5)

    asyncio.run(main())


def test_a_held_process_is_uncapped_and_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        kernel, told = Kernel(), []
        guest = process_guest(tmp_path, kernel, told)
        await guest.set_cap(0.5)
        guest._status.state = ProcessState.HELD
        kernel.found = None  # lifted by the hold
        assert await guest.set_cap(0.25) == WORKERS
        sample = guest.sample()
        await settle()
        assert (sample.cap_cores, sample.wanted_cores) == (WORKERS, 0.25)
        assert (told, kernel.sets) == ([], [0.5])

    asyncio.run(main())


def test_a_cap_that_cannot_be_read_is_unknown_and_no_drift(tmp_path: Path) -> None:
    async def main() -> None:
        kernel, told = Kernel(), []
        guest = process_guest(tmp_path, kernel, told)
        kernel.found = OSError("the group has gone")
        sample = guest.sample()
        await settle()
        assert (sample.cap_cores, sample.wanted_cores) == (None, 0.5)
        assert told == []

    asyncio.run(main())


def test_a_repair_never_caps_a_process_that_is_held_meanwhile(tmp_path: Path) -> None:
    async def main() -> None:
        kernel, told = Kernel(), []
        guest = process_guest(tmp_path, kernel, told)
        kernel.found = 1.5
        guest.sample()  # the repair has not begun
        guest._status.state = ProcessState.HELD
        await settle()
        assert (kernel.sets, told) == ([], [])

    asyncio.run(main())


def test_caps_by_signals_are_those_that_are_enforced() -> None:
    async def main(pid: int) -> None:
        caps = DutyCaps()
        with pytest.raises(KeyError):
            caps.read("g")
        await caps.add("g", pid, WORKERS)
        assert caps.read("g") == WORKERS
        for cap_cores, in_force in ((0.5, 0.5), (5.0, WORKERS), (0.25, 0.25), (None, WORKERS)):
            await caps.set("g", cap_cores)
            assert caps.read("g") == in_force
        await caps.close()

    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:  # ends with its input
        asyncio.run(main(process.pid))
        process.kill()


def test_the_quota_of_a_container_is_read_from_its_group_each_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def main() -> None:
        async def set_cap(container: str, cap_cores: float | None) -> None:
            assert container == "c"
            quota = "max" if cap_cores is None else str(round(cap_cores * 100_000))
            (tmp_path / "cpu.max").write_text(f"{quota} 100000", encoding="ascii")

        caps = ContainerCaps(SimpleNamespace(set_cap=set_cap), Kernel())
        monkeypatch.setattr(container_caps, "_group_of", lambda _pid: tmp_path)
        caps.enclose("g", "c")
        await caps.add("g", 1, WORKERS)
        assert await caps.set("g", 0.5) == caps.read("g") == 0.5
        (tmp_path / "cpu.max").write_text("150000 100000", encoding="ascii")
        assert caps.read("g") == 1.5
        assert await caps.set("g", None) is None
        assert caps.read("g") == WORKERS

    asyncio.run(main())


# --- virtual machines


class Vcpus:
    """Virtual CPUs whose caps another program can change."""

    def __init__(self) -> None:
        self.found: float | None = None
        self.looks: Callable[[], None] = lambda: None

    def set_cap(self, domain: object, each_cores: float) -> None:
        del domain
        self.found = None if each_cores >= 1 else each_cores * WORKERS

    def cap_cores(self) -> float | None:
        return self.found

    def look(self) -> None:
        self.looks()

    def seen(self) -> DomainSample:
        return DomainSample(self.found, 1.0, 10.0)


class Hypervisor:
    def file(self, path: Path) -> Path:
        return path

    async def in_thread(self, function: Callable[[], object]) -> object:
        return function()

    async def on_domain(self, _name: str, _deadline_s: float, function: Callable[[object], object]) -> object:
        return function(None)


def virtual_guest(vcpus: Vcpus, told: list[DriverEvent]) -> VirtualGuest:
    platform = SimpleNamespace(timeouts=Timeouts(), console_path=lambda _name: Path("/nowhere/console"))
    guest = VirtualGuest(SPEC, 0.5, Hypervisor(), platform, told.append, lambda _guest: None, 1.0)
    guest._cap.vcpus = vcpus  # as `appear` finds them
    guest.state = VirtualState.RUNNING
    return guest


def test_a_virtual_machine_tells_the_cap_in_force() -> None:
    async def main() -> None:
        vcpus, told = Vcpus(), []
        guest = virtual_guest(vcpus, told)
        assert await guest.set_cap(0.5) == 0.5
        vcpus.found = 1.25
        sample = guest.sample()
        assert (sample.cap_cores, sample.wanted_cores) == (1.25, 0.5)
        await settle()
        assert [(one.event, one.detail) for one in told] == [("drift", {"wanted": 0.5, "found": 1.25})]
        assert guest.sample().cap_cores == 0.5
        assert await guest.set_cap(5.0) == WORKERS  # no cap, so all that the guest can use
        assert guest.sample().cap_cores == WORKERS
        guest.state = VirtualState.STARTING  # it fills its memory, uncapped
        assert await guest.set_cap(0.25) == WORKERS
        assert guest.sample().cap_cores == WORKERS

    asyncio.run(main())


def test_a_hypervisor_that_does_not_answer_leaves_the_cap_unknown() -> None:
    async def main() -> None:
        vcpus, told = Vcpus(), []
        guest = virtual_guest(vcpus, told)
        await guest.set_cap(0.5)

        def away() -> None:
            raise DriverError("libvirt is away")

        vcpus.looks = away
        await guest.look()
        sample = guest.sample()
        assert (sample.cap_cores, sample.wanted_cores, sample.cpu_s) == (None, 0.5, 1.0)
        vcpus.looks = lambda: None
        await guest.look()
        assert guest.sample().cap_cores == 0.5

    asyncio.run(main())


# --- programs outside guests


@pytest.mark.parametrize("found", [None, 1.0])
def test_a_program_outside_guests_whose_cap_reads_back_otherwise_is_not_measured(found: float | None) -> None:
    async def main() -> None:
        class Caps:
            async def add(self, *_args: object) -> None:
                pass

            async def set(self, _key: str, _cap_cores: float) -> float | None:
                return found

        native = NativePrograms.__new__(NativePrograms)
        native._opening, native._caps = asyncio.Lock(), Caps()
        rank = SimpleNamespace(key="k", pid=1, name="native-0", capped=False)
        with pytest.raises(DriverError, match=f"native-0: cap 0.3 cores was read back as {found}"):
            await native._cap([rank], SPEC.program, 0.3)
        assert rank.capped  # so that it is removed again

    asyncio.run(main())
