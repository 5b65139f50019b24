"""Caps of CPU time: the files that are written, and the CPU time that processes really get."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.live import until

from node_agent.drivers.caps.cgroup import PERIOD_US, CgroupV2Caps, read_throttled_s
from node_agent.drivers.caps.duty import DutyCaps, process_clock
from node_agent.drivers.caps.mounts import own_group
from node_agent.drivers.caps.probe import MECHANISMS, open_caps
from node_agent.drivers.protocol import DriverError
from testbed.testing.accuracy import Accuracy, Window

MOUNTS = """\
24 29 0:22 / /proc rw,nosuid shared:12 - proc proc rw
30 23 0:26 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw,nsdelegate
33 25 0:29 {root} /sys/fs/cgroup/cpu,cpuacct rw shared:15 - cgroup cgroup rw,cpu,cpuacct
34 25 0:30 / /sys/fs/cgroup/cpuset rw shared:16 - cgroup cgroup rw,cpuset
"""


@contextlib.contextmanager
def spinner(threads: int = 1) -> Iterator[subprocess.Popen[bytes]]:
    code = (
        "import sys,threading,hashlib\n"
        "data=bytes(1<<20)\n"
        "def spin():\n"
        "    while True: hashlib.sha256(data)\n"
        f"for _ in range({threads - 1}): threading.Thread(target=spin).start()\n"
        "print(flush=True)\nspin()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()


def status(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]


def test_own_group_is_found_among_the_mounts():
    groups = "5:cpuset:/box\n4:cpu,cpuacct:/user/me\n0::/scope\n"
    mounts = MOUNTS.format(root="/")
    assert own_group("cgroup", mounts, groups) == Path("/sys/fs/cgroup/cpu,cpuacct/user/me")
    assert own_group("cgroup2", mounts, groups) == Path("/sys/fs/cgroup/unified/scope")
    inside = MOUNTS.format(root="/user")  # in a container, its own group is the root of the mount
    assert own_group("cgroup", inside, groups) == Path("/sys/fs/cgroup/cpu,cpuacct/me")
    assert own_group("cgroup", MOUNTS.format(root="/elsewhere"), groups) == Path("/sys/fs/cgroup/cpu,cpuacct")
    assert own_group("cgroup", mounts, "0::/scope\n") is None
    assert own_group("cgroup2", "", groups) is None


class FakeKernel(CgroupV2Caps):
    """Version 2 over plain files: makes the files that the kernel makes in a new group, and removes them with it."""

    members = "cgroup.procs"  # the kernel derives `cgroup.threads` from this file
    quotas = 0  # how often one was written

    def write_quota(self, folder: Path, quota_us: int | None) -> None:
        if not folder.exists():
            raise FileNotFoundError(folder)
        self.quotas += 1
        super().write_quota(folder, quota_us)

    def _drop(self, folder: Path) -> None:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def test_version_2_makes_threaded_groups_and_caps_them(tmp_path):
    own = tmp_path / "service"
    own.mkdir()
    (own / "cgroup.type").write_text("domain\n", encoding="ascii")

    async def scenario() -> None:
        caps = FakeKernel(own / "dfrs-n0")
        await caps.open()
        assert (own / "cgroup.subtree_control").read_text(encoding="ascii") == "+cpu"
        assert (own / "dfrs-n0" / "cgroup.subtree_control").read_text(encoding="ascii") == "+cpu"
        assert (own / "dfrs-n0" / "cgroup.type").read_text(encoding="ascii") == "threaded"
        assert not (own / "dfrs-n0" / "trial").exists()
        await caps.add("a", 4321, most_cores=2.0)
        group = own / "dfrs-n0" / "a"
        assert (group / "cgroup.procs").read_text(encoding="ascii") == "4321"
        assert (group / "cgroup.type").read_text(encoding="ascii") == "threaded"
        assert (group / "cpu.max").read_text(encoding="ascii") == "max 100000"
        assert caps.read("a") == 2.0  # the most that it can use
        assert await caps.set("a", 0.25) == 0.25
        (group / "cpu.max").write_text("25000 50000", encoding="ascii")  # another program has changed the period only
        assert caps.read("a") == 0.5
        (group / "cpu.max").write_text("max 100000", encoding="ascii")
        assert caps.read("a") == 2.0
        assert await caps.set("a", 0.25) == caps.read("a") == 0.25
        assert (group / "cpu.max").read_text(encoding="ascii") == "25000 100000"
        assert await caps.set("a", 2.0) == 2.0
        assert (group / "cpu.max").read_text(encoding="ascii") == "max 100000"
        assert await caps.set("a", 0.001) == 1000 / PERIOD_US  # the kernel's minimum
        assert await caps.set("a", None) is None
        whole = own / "dfrs-n0" / "cpu.max"
        await caps.bound(0.35)
        assert whole.read_text(encoding="ascii") == "35000 100000"
        written = caps.quotas
        await caps.bound(0.35)
        assert caps.quotas == written, "a quota that is in force is not written again"
        whole.write_text("70000 100000", encoding="ascii")  # another program has changed it
        await caps.bound(0.35)
        assert whole.read_text(encoding="ascii") == "35000 100000"
        for part_frac, weight in ((0.3, "3000"), (1.0, "10000"), (0.0, "1")):
            assert await caps.weigh("a", part_frac) == caps.weight("a") == int(weight) / 10_000
            assert (group / "cpu.weight").read_text(encoding="ascii") == weight
        with pytest.raises(KeyError):
            await caps.weigh("b", 0.5)
        with pytest.raises(KeyError):
            caps.weight("b")
        await caps.close()
        assert not group.exists()
        assert (own / "cgroup.subtree_control").read_text(encoding="ascii") == "-cpu"
        assert sorted(path.name for path in own.iterdir() if path.is_dir()) == []

    asyncio.run(scenario())


def test_a_mechanism_that_is_not_there_is_told():
    with pytest.raises(DriverError, match="cap mechanism 'magic': expected one of cgroup2, cgroup1, duty"):
        asyncio.run(open_caps("dfrs-t", "magic"))


class FakeClocks:
    """Processes that exist only as clocks and signals, in time that the test advances."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, caps: DutyCaps, speeds: list[float]) -> None:
        self.now_s = 1000.0
        self.used_s = [0.0] * len(speeds)
        self.speeds = speeds
        self.stopped = [False] * len(speeds)
        self.caps = caps
        self.due_s = 0.0
        module = "node_agent.drivers.caps.duty"
        monkeypatch.setattr(f"{module}.time.monotonic", lambda: self.now_s)
        monkeypatch.setattr(f"{module}.time.clock_gettime", lambda clock: self.used_s[clock])
        monkeypatch.setattr(f"{module}.process_clock", lambda pid: pid)
        monkeypatch.setattr(f"{module}.os.pidfd_open", lambda pid: pid)
        monkeypatch.setattr(f"{module}.os.close", lambda _descriptor: None)
        monkeypatch.setattr(f"{module}.signal.pidfd_send_signal", self.signal)
        monkeypatch.setattr(f"{module}.asyncio.get_running_loop", lambda: self)

    def signal(self, pidfd: int, number: int) -> None:
        import signal

        self.stopped[pidfd] = number == signal.SIGSTOP

    def call_later(self, delay_s: float, _callback: object) -> FakeClocks:
        self.due_s = self.now_s + delay_s
        return self

    def cancel(self) -> None:
        self.due_s = float("inf")

    def advance(self, until_s: float, late_s: float) -> None:
        """Let time pass; timers fire `late_s` late."""
        while self.due_s + late_s <= until_s:
            assert self.due_s + late_s >= self.now_s
            self.pass_to(self.due_s + late_s + 1e-9)
            self.caps._tick()
        self.pass_to(until_s)

    def pass_to(self, then_s: float) -> None:
        for index, stopped in enumerate(self.stopped):
            if not stopped:
                self.used_s[index] += self.speeds[index] * (then_s - self.now_s)
        self.now_s = then_s


@given(
    caps_of=st.lists(st.floats(0.02, 0.98), min_size=1, max_size=4),
    late_s=st.floats(0.0, 0.004),
)
def test_duty_gives_the_cap_on_average_however_late_its_timers(caps_of, late_s):
    with pytest.MonkeyPatch.context() as monkeypatch:
        caps = DutyCaps()
        fake = FakeClocks(monkeypatch, caps, [1.0] * len(caps_of))

        async def scenario() -> None:
            for index, cap_cores in enumerate(caps_of):
                await caps.add(f"g{index}", index, 1.0)
                assert await caps.set(f"g{index}", cap_cores) == cap_cores

        asyncio.run(scenario())
        fake.advance(1010.0, late_s)
        for used_s, cap_cores in zip(fake.used_s, caps_of, strict=True):
            assert used_s == pytest.approx(10.0 * cap_cores, abs=0.1 + 0.004)  # a period's phase and a late reading


@given(cap_cores=st.floats(0.05, 0.9), idle_s=st.floats(0.0, 30.0))
def test_what_was_not_used_is_caught_up_only_in_a_bounded_way(cap_cores, idle_s):
    with pytest.MonkeyPatch.context() as monkeypatch:
        caps = DutyCaps()
        fake = FakeClocks(monkeypatch, caps, [0.0])

        async def scenario() -> None:
            await caps.add("g", 0, 1.0)
            await caps.set("g", cap_cores)

        asyncio.run(scenario())
        fake.advance(1000.0 + idle_s, 0.0)
        fake.speeds[0] = 1.0
        fake.advance(fake.now_s + 1.0, 0.0)
        assert fake.used_s[0] <= cap_cores * (1.0 + 3 * 0.1) + 0.01  # one period is carried over, two are cut off


def test_duty_sends_no_signal_when_the_cap_does_not_bind(monkeypatch):
    caps = DutyCaps()
    fake = FakeClocks(monkeypatch, caps, [1.0])
    fake.signal = None  # type: ignore[assignment]  # a call would raise

    async def scenario() -> None:
        await caps.add("g", 0, 1.0)
        assert await caps.set("g", 1.0) == 1.0
        assert await caps.set("g", None) is None

    asyncio.run(scenario())
    assert fake.due_s == 0.0  # not even a timer


@pytest.mark.slow
@pytest.mark.parametrize("end", ["lift", "raise", "remove", "close"])
def test_duty_never_leaves_a_process_stopped(end):
    async def scenario(pid: int) -> None:
        caps = DutyCaps()
        await caps.add("g", pid, 1.0)
        await caps.set("g", 0.02)
        await until(lambda: status(pid) == "T", "a process that its cap has stopped")
        match end:
            case "lift":
                await caps.set("g", None)
            case "raise":
                await caps.set("g", 1.0)
            case "remove":
                await caps.remove("g")
            case "close":
                await caps.close()
        assert status(pid) != "T"
        await caps.close()

    with spinner() as process:
        asyncio.run(scenario(process.pid))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("nr_periods 3\nthrottled_usec 1500000\n", 1.5), ("nr_periods 3\nthrottled_time 1500000000\n", 1.5), ("", 0.0)],
)
def test_throttled_time_is_read_from_both_versions_of_control_groups(tmp_path: Path, text: str, seconds: float) -> None:
    (tmp_path / "cpu.stat").write_text(text)
    assert read_throttled_s(tmp_path) == seconds


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_cap_below_the_need_throttles_and_no_cap_does_not(mechanism: str) -> None:
    async def scenario(pid: int) -> None:
        try:
            caps = await open_caps("dfrs-t-held", mechanism)
        except DriverError as error:
            if mechanism == "duty":  # this mechanism has no requirements
                raise
            pytest.skip(str(error))
        try:
            await caps.add("g", pid, 1)
            await caps.set("g", 0.2)
            before_s = caps.throttled_s("g")
            assert before_s is not None
            await until(lambda: (caps.throttled_s("g") or 0.0) > before_s + 0.5, "throttled time")
            await caps.set("g", None)
            free_s = caps.throttled_s("g")
            clock = process_clock(pid)
            used_s = time.clock_gettime(clock)
            await until(lambda: time.clock_gettime(clock) > used_s + 0.5, "CPU time")
            assert caps.throttled_s("g") == pytest.approx(free_s, abs=0.1), "the period in which the cap was lifted"
        finally:
            await caps.close()

    with spinner(1) as process:
        asyncio.run(scenario(process.pid))


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_processes_get_no_more_than_their_cap_and_what_they_can_of_it(
    mechanism: str, threads: int, accuracy: Accuracy
) -> None:
    cap_cores = 0.3

    async def scenario(pid: int) -> None:
        try:
            caps = await open_caps("dfrs-t-real", mechanism)
        except DriverError as error:
            if mechanism == "duty":  # this mechanism has no requirements
                raise
            pytest.skip(str(error))
        try:
            await caps.add("g", pid, threads)
            assert await caps.set("g", cap_cores) == pytest.approx(cap_cores)
            await asyncio.sleep(0.3)  # speed: the period in which it was set
            clock, window = process_clock(pid), Window()
            begin_s, used_s = time.monotonic(), time.clock_gettime(clock)
            await asyncio.sleep(3.0)  # speed: the length of the measurement
            used_s = time.clock_gettime(clock) - used_s
            # the CPU time was read between the two readings of the clock, so no pause of this process breaks the bound
            elapsed_s = time.monotonic() - begin_s
            if mechanism != "duty":  # this process enforces that one, and may be late
                assert used_s <= cap_cores * elapsed_s + 0.05, f"{used_s:.3f} s of {elapsed_s:.3f} s"
            accuracy.check(f"used of {cap_cores} cores", used_s / elapsed_s, 0.27, cap_cores * 1.08, window)
        finally:
            await caps.close()

    with spinner(threads) as process:
        asyncio.run(scenario(process.pid))
