"""The guest image's programs as ranks on this machine, without the image: built from their sources and libraries."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest
from support.live import ENDLESS_UNITS, until

from node_agent.drivers.native import NativeBarriers
from node_agent.drivers.protocol import DriverError
from node_agent.drivers.virt.native import NativePrograms
from node_agent.programs.segments import segments_of
from testbed.bus.messages import ProgramSpec
from testbed.host.mpich import mpich
from testbed.lab.guest_image.recipe_mpi import closure

PATTERNS = ProgramSpec(name="patterns", work_units=ENDLESS_UNITS, units_per_iteration=50, seed=7, ranks=3)


@pytest.fixture(scope="module")
def root(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the layout of the unpacked guest image."""
    folder = tmp_path_factory.mktemp("root")
    for name in ("lib64", "usr/lib", "bin"):
        (folder / name).mkdir(parents=True)
    library = mpich().library
    loader, libraries = closure((library,))
    (folder / "lib64" / loader.name).symlink_to(loader)
    for name, path in {**libraries, library.name: library}.items():
        (folder / "usr/lib" / name).symlink_to(path)
    (folder / "bin/patterns").symlink_to(programs / "patterns")
    return folder


def on(root: Path, folder: Path, work: Callable[[NativePrograms], Awaitable[None]]) -> None:
    async def main() -> None:
        native = NativePrograms(root, folder, f"dfrs-t-native-{os.getpid()}")
        try:
            await work(native)
        finally:
            await native.close()

    asyncio.run(main())
    assert list(folder.iterdir()) == []


def worked(folder: Path) -> int:
    """Return how many ranks have worked."""
    return sum(any(file.read_bytes()[:8]) for file in folder.glob("native-*/progress"))


def test_ranks_work_and_nothing_is_left_of_them(root: Path, short_path: Path) -> None:
    async def work(native: NativePrograms) -> None:
        running = asyncio.create_task(native.run(PATTERNS, 0.2, 0.0))
        await until(lambda: len([rank for rank in native._ranks if rank.pid]) == 3 or running.done(), "three ranks")
        await until(lambda: all(segments_of(rank.pid) for rank in native._ranks) or running.done(), "their segments")
        segments = {path for rank in native._ranks for path in segments_of(rank.pid)}
        report = await running
        assert report.units > 0
        assert not [path for path in segments if path.exists()]

    on(root, short_path, work)


def test_a_rank_that_dies_ends_the_others(root: Path, short_path: Path) -> None:
    async def work(native: NativePrograms) -> None:
        running = asyncio.create_task(native.run(PATTERNS, 600.0, 0.0))
        await until(lambda: len(list(native._ranks)) == 3 and all(rank.pid for rank in native._ranks), "three ranks")
        await until(lambda: all(segments_of(rank.pid) for rank in native._ranks), "their segments")
        await until(lambda: worked(short_path) == 3, "work")
        pids = [rank.pid for rank in native._ranks]
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(DriverError, match=r"native-\d: it (hung up|has ended)"):
            await running
        assert not [pid for pid in pids if psutil.pid_exists(pid)]

    on(root, short_path, work)


def test_ranks_that_publish_nonsense_are_ended_with_a_line(
    root: Path, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter = NativeBarriers.enter

    def twist(self: NativeBarriers, rank: int, detail: dict[str, object]) -> None:
        enter(self, rank, {**detail, "keys": {"PMI_process_mapping": "x"}} if rank == 2 else detail)

    monkeypatch.setattr(NativeBarriers, "enter", twist)

    async def work(native: NativePrograms) -> None:
        with pytest.raises(DriverError, match="native-2: MPI key 'PMI_process_mapping' = 'x': expected"):
            await native.run(PATTERNS, 600.0, 0.0)

    on(root, short_path, work)
