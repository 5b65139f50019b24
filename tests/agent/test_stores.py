"""Images on disk and in memory: found by name, cold on request, removed with their agent even if it was killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from node_agent.agent import Agent, AgentConfig
from node_agent.drivers.null import NullDriver
from node_agent.drivers.protocol import DriverError
from node_agent.image_notes import ImageNote
from node_agent.images import ImageStore
from node_agent.page_cache import cached_frac, drop_cached
from node_agent.stores import ImageStores, MemoryFolder, sweep, tmpfs
from testbed.bus.memory import MemoryHub
from testbed.bus.messages import (
    FetchImage,
    GuestSpec,
    Hold,
    ImageRef,
    Native,
    ProgramSpec,
    Save,
    Start,
    Watch,
)
from testbed.lab.virtual_time import run_in_virtual_time

needs_tmpfs = pytest.mark.skipif(tmpfs() is None, reason="this machine has no tmpfs to write to")
HOLD = """
import sys
from pathlib import Path
from node_agent.stores import MemoryFolder
folder = MemoryFolder(Path(sys.argv[1]), "n")
(folder.path / "a.img").write_bytes(b"x")
print(folder.path, flush=True)
sys.stdin.read()
"""


def test_a_store_that_opens_does_not_disturb_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread opens the memory: an agent does so while it completes notes of an earlier agent's images."""
    stores = ImageStores(tmp_path / "disk", durable=False)
    begun = ImageStore.begun

    def meanwhile(store: ImageStore) -> dict[str, ImageNote]:
        stores.rehearse_memory()
        return begun(store)

    monkeypatch.setattr(ImageStore, "begun", meanwhile)
    assert stores.begun() == {}
    assert stores.names == ("disk", "memory")


@needs_tmpfs
def test_a_name_is_that_of_one_image_wherever_it_is(tmp_path: Path) -> None:
    stores = ImageStores(tmp_path / "disk")
    assert stores.names == ("disk",)
    with pytest.raises(DriverError, match="image store 'memory': expected one of disk"):
        stores.place("a.img", "memory", 1)
    stores.open_memory("n")
    try:
        assert stores.names == ("disk", "memory")
        assert stores.path("a.img") == tmp_path / "disk/a.img"  # exists nowhere yet
        stores.place("a.img", "", 1).write_bytes(b"first")
        place = stores.place("a.img", "memory", 1)
        place.write_bytes(b"second")
        assert tmp_path not in place.parents
        assert stores.path("a.img") == place
        assert not (tmp_path / "disk/a.img").exists()
        with pytest.raises(DriverError, match=r"image store memory: \d+ MiB to save .* MiB are free"):
            stores.place("b.img", "memory", 1 << 30)
        stores.drop("a.img")
        assert not place.exists()
    finally:
        stores.close()
    assert not place.parent.exists()
    assert stores.names == ("disk",)


@pytest.mark.slow
def test_what_a_killed_agent_left_in_memory_is_removed_and_nothing_else(tmp_path: Path) -> None:
    def hold() -> tuple[subprocess.Popen[str], Path]:
        child = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        return child, Path(child.stdout.readline().strip())

    (dead, left), (alive, there) = hold(), hold()
    assert sweep(tmp_path) == []
    os.kill(dead.pid, signal.SIGKILL)
    dead.wait()
    own = MemoryFolder(tmp_path, "n")  # sweeps
    assert not left.exists()
    assert (there / "a.img").exists()
    own.remove()
    assert not own.path.exists()
    alive.communicate()  # ends its input, and so the process
    assert sweep(tmp_path) == [there]
    for child in (dead, alive):
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()


def test_a_file_is_cold_once_it_was_dropped(tmp_path: Path) -> None:
    path = tmp_path / "a.img"
    assert cached_frac(path) is None
    path.write_bytes(b"")
    assert cached_frac(path) is None
    path.write_bytes(os.urandom(3_000_000))
    assert cached_frac(path) == 1.0
    drop_cached(path)
    assert cached_frac(path) == 0.0
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no reading ahead
        file.read(4096)
    assert 0 < (cached_frac(path) or 0) < 0.5
    with pytest.raises(FileNotFoundError):
        drop_cached(tmp_path / "b.img")


def _spec(memory_mib: int = 60) -> GuestSpec:
    program = ProgramSpec(name="eatcpu", work_units=10**9, units_per_iteration=100, seed=1, touched_frac=0.5)
    return GuestSpec(guest="a", run="t", job=1, task=0, program=program, cpu_cores=1.0, memory_mib=memory_mib)


def test_a_rehearsal_can_do_all_that_an_experiment_asks_for(tmp_path: Path) -> None:
    async def main() -> None:
        hub, agents = MemoryHub(), []
        for name in ("n0", "n1"):
            images = tmp_path / name / "images"
            config = AgentConfig("t", name, 1.0, 100, tmp_path / name, images, str(images), serve_images=False)
            agents.append(Agent(config, NullDriver(), lambda presence: hub.client(presence.topic, presence)))
        tasks = [asyncio.create_task(agent.run()) for agent in agents]
        await asyncio.sleep(1.0)
        here, there = agents
        assert here._stores.names == ("disk", "memory")
        assert await here.perform(Start(spec=_spec(), cap_cores=1.0)) == {}
        found = await here.perform(Watch(guests=("a",), every_s=0.5, for_s=10.0))
        assert found["cpu_s"]["a"][-1] - found["cpu_s"]["a"][0] == pytest.approx(10.0, abs=1e-6)
        await here.perform(Hold(guest="a"))
        saved = await here.perform(Save(guest="a", image="a.img", store="memory"))
        assert saved["bytes"] == 30 << 20
        image = ImageRef(image="a.img", bytes=int(str(saved["bytes"])), digest=str(saved["digest"]))
        place = str(tmp_path / "n0/images")
        await there.perform(FetchImage(image=image, host=place, port=0))
        warm = await here.perform(Start(spec=_spec(), cap_cores=1.0, image=image))
        cold = await there.perform(Start(spec=_spec(), cap_cores=1.0, image=image, cold=True))
        assert (warm, cold) == ({"cached_frac": 1.0}, {"cached_frac": 0.0})
        native = await there.perform(Native(program=_spec().program, seconds=2.0, cap_cores=0.5))
        assert native == {"units": 10_000, "elapsed_s": 2.0, "cpu_s": 1.0}
        with pytest.raises(DriverError, match="guest x: not here"):
            await here.perform(Watch(guests=("x",), every_s=0.5, for_s=10.0))
        for agent in agents:
            agent.stop()
        await asyncio.gather(*tasks)

    run_in_virtual_time(main())
