"""`testbed cleanup` after an agent was killed: real processes, and a real broker that requires certificates."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.deadlines import PATIENT_DEADLINES
from support.live import HANG_S
from support.secure.doors import LAB, Doors, open_doors

from testbed.bus.client import MqttBus
from testbed.bus.messages import GuestSpec, ProgramSpec, Start
from testbed.host.agents import claims
from testbed.host.process_identity import start_ticks
from testbed.lab.leased import lease_lab

pytestmark = pytest.mark.slow
SPEC = GuestSpec(
    guest="dfrs-left", run="t", job=1, task=0, cpu_cores=1.0, memory_mib=48,
    program=ProgramSpec(name="eatcpu", work_units=10**12, units_per_iteration=100, seed=1),
)  # fmt: skip


@dataclass
class Lab:
    """Starts agents of one node, and commands."""

    doors: Doors
    path: Path

    @property
    def state(self) -> Path:
        return self.path / "n1"

    @contextlib.asynccontextmanager
    async def agent(self, *words: str) -> AsyncIterator[asyncio.subprocess.Process]:
        tls_dir = self.doors.authority.folder / "nodes" / "n1"
        with (self.path / "agent.log").open("ab") as log:
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "node_agent", "--lab", LAB, "--node", "n1", "--memory-mib", "100",
                "--state-dir", str(self.state), "--broker", f"mqtts://127.0.0.1:{self.doors.agent_port}",
                "--tls-dir", str(tls_dir), *words, stderr=log,
            )  # fmt: skip
        try:
            yield child
        finally:
            if child.returncode is None:
                child.terminate()
            await child.wait()

    async def cleanup(self, *words: str) -> tuple[int, list[dict[str, str]]]:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "testbed",
            "cleanup",
            "--json",
            "--only",
            "agents",
            *words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = await child.communicate()
        assert child.returncode in {0, 1}, err.decode()
        return child.returncode, json.loads(out)["found"]

    @contextlib.asynccontextmanager
    async def driven(self) -> AsyncIterator[int]:
        """Hold the lab's lease with a working guest; yields the guest's process id."""
        async with (
            MqttBus(self.doors.controller(), "alice", keep_session=False) as bus,
            lease_lab(bus, LAB, ["n1"], "alice", deadlines=PATIENT_DEADLINES) as leased,
        ):
            await leased.ready()
            await leased.fleet.call(0, Start(spec=SPEC, cap_cores=0.5, verify=False), HANG_S)
            started = json.loads((self.state / "processes.json").read_text())["started"]
            (pid,) = (pid for pid in map(int, started) if "node_agent.programs" in psutil.Process(pid).cmdline())
            yield pid


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with open_doors(tmp_path_factory.mktemp("doors")) as opened:
        yield opened


@pytest.fixture
def play(doors: Doors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    monkeypatch.setenv("DFRS_CLAIMS_DIR", str(tmp_path / "claims"))

    def run(work: Callable[[Lab], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(HANG_S):
                await work(Lab(doors, tmp_path))

        asyncio.run(main())

    return run


def test_what_a_killed_agent_left_goes_when_nobody_drives_its_lab(play: Callable[..., None]) -> None:
    async def work(lab: Lab) -> None:
        async with lab.agent() as agent:
            async with lab.driven() as program:
                images = lab.state / "images"
                (images / "job-1-0.img").write_bytes(b"saved")
                (images / "job-1-0.img.json").write_text("{}")
                (images / "notes.txt").write_bytes(b"not ours")
                code, found = await lab.cleanup()
                assert (code, found) == (0, []), "a live agent holds it"
                agent.kill()
                await agent.wait()
                code, found = await lab.cleanup()
                assert code == 1
                assert f"image {images / 'job-1-0.img'}" in {each["what"] for each in found}
                assert all("drives lab" in each["kept"] for each in found)
                assert (images / "job-1-0.img").exists()
            code, found = await lab.cleanup("--dry-run")
            assert code == 0
            assert not any(each["kept"] for each in found)
            assert (images / "job-1-0.img").exists()
            code, removed = await lab.cleanup()
            assert code == 0
            assert {each["what"] for each in removed} <= {each["what"] for each in found}, (
                "processes may end by themselves"
            )
            assert start_ticks(program) is None
            assert sorted(path.name for path in images.iterdir()) == ["notes.txt"]
            assert claims() == []
            assert await lab.cleanup() == (0, [])

    play(work)


def test_a_restarted_agent_cleans_up_itself(play: Callable[..., None]) -> None:
    async def work(lab: Lab) -> None:
        async with lab.agent() as agent:
            async with lab.driven() as program:
                agent.kill()
                await agent.wait()
            (lab.state / "images" / "job-1-0.img").write_bytes(b"saved")
        async with lab.agent(), lab.driven():
            assert start_ticks(program) is None
            assert not (lab.state / "images" / "job-1-0.img").exists()
            assert await lab.cleanup() == (0, [])
        assert claims() == []

    play(work)


def test_folders_of_a_run_that_died_go_whole(play: Callable[..., None]) -> None:
    async def work(lab: Lab) -> None:
        async with lab.agent("--die-with-parent") as agent, lab.driven():
            agent.kill()
            await agent.wait()
        code, found = await lab.cleanup()
        assert code == 0
        assert f"folder {lab.state}" in {each["what"] for each in found}
        assert not lab.state.exists()

    play(work)
