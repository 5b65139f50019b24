"""The guest image's binaries on this machine, without a hypervisor: measured, capped, and always removed."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.live import ENDLESS_UNITS, HANG_S, until, wait_until

from node_agent.drivers.protocol import DriverError
from node_agent.drivers.virt.native import NativePrograms
from node_agent.guests.image import current
from node_agent.guests.unpack import unpacked
from node_agent.programs.segments import segments_of
from testbed.bus.messages import ProgramSpec
from testbed.errors import UserError
from testbed.host.guest_image import GuestImage
from testbed.testing.accuracy import Accuracy, Window

pytestmark = pytest.mark.slow
EATCPU = ProgramSpec(name="eatcpu", work_units=ENDLESS_UNITS, units_per_iteration=50, seed=7)
PATTERNS = ProgramSpec(name="patterns", work_units=ENDLESS_UNITS, units_per_iteration=50, seed=7, ranks=2)
RUN = """
import asyncio, sys
from pathlib import Path
from node_agent.drivers.virt.native import NativePrograms
from testbed.bus.messages import ProgramSpec
program = ProgramSpec(name=sys.argv[3], work_units=1 << 50, units_per_iteration=50, seed=7, ranks=int(sys.argv[4]))
asyncio.run(NativePrograms(Path(sys.argv[1]), Path(sys.argv[2]), "dfrs-none").run(program, 1e6, 0.0))
"""


@pytest.fixture(scope="module")
def image() -> GuestImage:
    try:
        return current()
    except UserError as error:
        pytest.skip(f"this machine has no guest image: {error}")


def on(image: GuestImage, folder: Path, work) -> None:
    async def main() -> None:
        programs = NativePrograms(unpacked(image), folder, f"dfrs-t-native-{os.getpid()}")
        try:
            await work(programs)
        finally:
            await programs.close()

    asyncio.run(main())
    assert list(folder.iterdir()) == []


def progress(folder: Path) -> int:
    """Return how many ranks have worked."""
    return sum(any(path.read_bytes()[:8]) for path in folder.glob("native-*/progress"))


def test_ranks_talk_and_the_slowest_is_reported(image: GuestImage, tmp_path: Path, accuracy: Accuracy) -> None:
    async def work(programs: NativePrograms) -> None:
        window = Window()
        report = await programs.run(PATTERNS, 0.5, 0.4)
        assert report.units > 0
        assert report.elapsed_s >= 0.5
        assert report.cpu_s > 0
        # five periods of the cap
        accuracy.check("cores of 0.4", report.cpu_s / report.elapsed_s, 0.2, 0.4 + 0.15, window)
        one, two = await asyncio.gather(programs.run(EATCPU, 0.3, 0.0), programs.run(EATCPU, 0.3, 0.0))
        assert min(one.units, two.units) > 0

    on(image, tmp_path, work)


def test_what_goes_wrong_is_told_by_the_program(image: GuestImage, tmp_path: Path) -> None:
    async def work(programs: NativePrograms) -> None:
        wrong = ProgramSpec(name="eatcpu", work_units=ENDLESS_UNITS, units_per_iteration=50, seed=7, topology="star")
        with pytest.raises(DriverError, match="topology = star"):
            await programs.run(wrong, 1.0, 0.0)
        running = asyncio.create_task(programs.run(EATCPU, HANG_S, 0.0))
        await until(lambda: progress(tmp_path), "progress")
        (rank,) = programs._ranks
        os.kill(rank.pid, signal.SIGKILL)
        with pytest.raises(DriverError, match=r"native-0: it (hung up|has ended)"):
            await running

    on(image, tmp_path, work)


@pytest.mark.parametrize(("program", "ranks"), [("eatcpu", 1), ("patterns", 2)])
def test_programs_end_with_an_agent_that_is_killed(image: GuestImage, tmp_path: Path, program: str, ranks: int) -> None:
    agent = subprocess.Popen([sys.executable, "-c", RUN, unpacked(image), tmp_path, program, str(ranks)])
    seen: dict[int, int] = {}  # process id: descriptor
    try:
        wait_until(lambda: agent.poll() is not None or progress(tmp_path) == ranks, "progress of all ranks")
        assert agent.poll() is None
        children = psutil.Process(agent.pid).children(recursive=True)
        assert len(children) == ranks
        seen = {child.pid: os.pidfd_open(child.pid) for child in children}
        segments = {path for pid in seen for path in segments_of(pid)}
        assert bool(segments) is (ranks > 1)
        agent.kill()
        agent.wait()
        for pid, descriptor in seen.items():
            assert select.select([descriptor], [], [], HANG_S)[0], f"process {pid} outlives its agent"
        left = NativePrograms(unpacked(image), tmp_path, "dfrs-none")  # the next agent
        assert [path.name for path in tmp_path.iterdir()] == []
        assert left._ranks == set()
        assert not [path for path in segments if path.exists()]
    finally:
        agent.kill()
        agent.wait()
        for descriptor in seen.values():
            signal.pidfd_send_signal(descriptor, signal.SIGKILL) if not select.select([descriptor], [], [], 0)[
                0
            ] else None
            os.close(descriptor)
