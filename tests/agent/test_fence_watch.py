"""The process that destroys virtual machines at their fences, with a fake virsh that records its calls."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.live import until

from node_agent.drivers.protocol import DriverError
from node_agent.drivers.virt import fence_watch
from node_agent.drivers.virt.domain import METADATA
from node_agent.drivers.virt.fence_watch import AGENT_LOCK, WATCH_LOCK, holder
from node_agent.drivers.virt.fence_watching import FenceWatching
from node_agent.fences import FENCES_FILE, Fences, clock_identity
from testbed.host.process_identity import start_ticks
from testbed.host.whole_files import write_whole

URI = "qemu+unix:///system?socket=/somewhere/else"
VIRSH = f"""#!/bin/sh
# its domains are files in the folder `there`; the first `resists` orders to destroy one fail
cd {{folder}}
[ "$1 $2 $3" = "-q -c {URI}" ] || exit 2
shift 3
echo "$*" >> asked
case "$1" in
list) ls there ;;
dumpxml) cat there/"$3" ;;
destroy) if [ -s resists ]; then : > resists; exit 1; fi; rm there/"$3" ;;
esac
"""


class World:
    """A node with a fake virsh, and the process that watches its fences."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.virt, self.state = tmp_path / "virt", tmp_path / "state"
        for folder in (self.virt / "there", self.state, tmp_path / "bin"):
            folder.mkdir(parents=True)
        virsh = tmp_path / "bin" / "virsh"
        virsh.write_text(VIRSH.format(folder=self.virt))
        virsh.chmod(0o755)
        monkeypatch.setenv("PATH", f"{virsh.parent}:{os.environ['PATH']}")
        self.agent = FenceWatching(self.state, URI)
        self.fences = Fences(clock_identity())

    @property
    def pid(self) -> int:
        return holder(self.state / WATCH_LOCK)

    def domain(self, guest: str, *, ours: bool = True) -> Path:
        path = self.virt / "there" / guest
        owner = f'<metadata><d:guest xmlns:d="{METADATA}" node="n0"/></metadata>' if ours else ""
        path.write_text(f"<domain><name>{guest}</name>{owner}</domain>")
        return path

    def fence(self, guest: str, in_s: float, *, arriving: bool = False) -> None:
        self.fences.place(guest, time.monotonic_ns() + int(in_s * 1e9), arriving=arriving)
        write_whole(self.state / FENCES_FILE, self.fences.encode(), durable=False)

    def asked(self, word: str) -> list[str]:
        path = self.virt / "asked"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(word)]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    found = World(tmp_path, monkeypatch)
    found.agent.begin()
    yield found
    found.agent.close(end=True)
    assert not found.pid
    assert not [path for path in (WATCH_LOCK, AGENT_LOCK, fence_watch.LOG) if (found.state / path).exists()]


def test_the_constants_are_those_of_domains_and_of_this_python() -> None:
    assert fence_watch.METADATA == METADATA


def wait(condition, what: str) -> None:
    asyncio.run(until(condition, what))


def test_guests_are_destroyed_at_their_fences_and_no_others(world: World) -> None:
    a, b, c, foreign = (world.domain(name, ours=name != "foreign") for name in ("a", "b", "c", "foreign"))
    for guest, in_s in {"a": 0.5, "b": 3600.0, "foreign": 0.5, "--all": 0.5}.items():
        world.fence(guest, in_s)
    world.agent.ensure()
    wait(lambda: not a.exists(), "the end of a")
    wait(lambda: len(world.asked("dumpxml --domain foreign")) >= 2, "another look at a domain of others")
    assert (b.exists(), c.exists(), foreign.exists()) == (True, True, True)
    assert world.asked("destroy") == ["destroy --domain a"]
    assert [line for line in world.asked("") if "--all" in line] == []


def test_a_guest_that_resists_is_destroyed_again_and_one_that_arrives_late_at_once(world: World) -> None:
    a = world.domain("a")
    (world.virt / "resists").write_text("once")
    world.fence("a", 0.0)
    world.fence("late", 0.0, arriving=True)
    world.agent.ensure()
    wait(lambda: not a.exists(), "the end of a")
    assert world.asked("destroy") == ["destroy --domain a"] * 2
    late = world.domain("late")
    wait(lambda: not late.exists(), "the end of a guest that has arrived late")


def test_there_is_one_for_a_folder_whichever_agent_asks(world: World) -> None:
    world.fence("a", 3600.0)

    async def ask() -> None:
        agents = [world.agent, *(FenceWatching(world.state, URI) for _ in range(3))]
        await asyncio.gather(*(asyncio.to_thread(agent.ensure) for agent in agents))

    asyncio.run(ask())
    first = world.pid
    world.agent.ensure()
    assert world.pid == first

    def running() -> list[int]:
        lines = Path("/proc").glob("[0-9]*/cmdline")
        return [int(path.parent.name) for path in lines if str(world.state).encode() in _read(path)]

    wait(lambda: running() == [first], "the end of the others")
    os.kill(first, signal.SIGKILL)
    wait(lambda: start_ticks(first) is None, "its end")
    os.waitpid(first, 0)
    world.agent.ensure()
    assert world.pid not in (0, first)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""


DEAD_AGENT = """
import os, signal, sys
from pathlib import Path
from node_agent.drivers.virt.fence_watching import FenceWatching

agent = FenceWatching(Path(sys.argv[1]), sys.argv[2])
agent.begin()
agent.ensure()
os.kill(os.getpid(), int(sys.argv[3]))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_it_outlives_an_agent_that_is_killed_or_stopped(world: World, how: signal.Signals) -> None:
    world.agent.close(end=True)
    a = world.domain("a")
    world.fence("a", 1.0)
    with subprocess.Popen([sys.executable, "-c", DEAD_AGENT, world.state, URI, str(int(how))]) as agent:
        os.waitid(os.P_PID, agent.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
        assert world.pid
        wait(lambda: not a.exists(), "the end of a")
        agent.kill()


def test_it_ends_without_an_agent_once_no_fence_is_left(world: World) -> None:
    world.fence("a", 3600.0)
    world.agent.ensure()
    pid = world.pid
    world.agent.close(end=False)
    world.fences.clear()
    write_whole(world.state / FENCES_FILE, world.fences.encode(), durable=False)
    wait(lambda: start_ticks(pid) is None, "its end")
    os.waitpid(pid, 0)


def test_a_cleanup_names_and_ends_it(world: World) -> None:
    world.fence("a", 3600.0)
    world.agent.ensure()
    pid = world.pid
    told = [f"process {pid}, which enforces fences"]
    cleanup = FenceWatching(world.state, URI)
    assert cleanup.end(dry_run=True) == told
    assert world.pid == pid
    assert cleanup.end() == told
    assert cleanup.end() == []
    assert start_ticks(pid) is None


@pytest.mark.parametrize("uri", ["qemu:///embed?root=/somewhere", "test:///default"])
def test_a_hypervisor_that_no_other_process_reaches_is_not_watched(world: World, uri: str) -> None:
    agent = FenceWatching(world.state, uri)
    assert not agent.able
    agent.begin()
    agent.ensure()
    assert not world.pid
    agent.close(end=True)


def test_nothing_is_started_without_virsh(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    agent = FenceWatching(world.state, URI)
    agent.ensure()
    assert (agent.able, world.pid) == (False, 0)


def test_a_guest_does_not_begin_if_its_fence_would_not_hold(world: World) -> None:
    world.fence("a", 3600.0)
    (world.state / WATCH_LOCK).mkdir()
    with pytest.raises(DriverError, match=r"nothing enforces fences without this agent: .*Is a directory"):
        world.agent.ensure()
    (world.state / WATCH_LOCK).rmdir()
