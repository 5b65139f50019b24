"""`testbed cleanup` and runs that can be resumed: real agents and guests, whose controller was killed."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.control.live_run import ENDLESS_S, Run
from support.control.live_run import start as start  # noqa: PLC0414  # the fixture
from support.live import HANG_S

from testbed.host.agents import claims
from testbed.host.process_identity import boot_id
from testbed.measure.rundir import read_journal

pytestmark = pytest.mark.slow
JOBS = f"1,0,1,1.0,0.2,{ENDLESS_S}\n"


def command(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "testbed", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=HANG_S, check=False)


def cleanup(*words: str) -> tuple[int, list[dict[str, str]]]:
    done = command("cleanup", "--json", "--only", "agents", *words)
    assert done.returncode in {0, 1}, done.stderr
    return done.returncode, json.loads(done.stdout)["found"]


def refusal(*words: str) -> str:
    done = command(*words)
    assert done.returncode == 2, done.stdout
    return done.stderr.strip().removeprefix("testbed: ")


def alive(agents: list[psutil.Process]) -> int:
    """Return how many of the processes run; zombies, whose parent was killed, do not count."""
    return sum(agent.is_running() and agent.status() != psutil.STATUS_ZOMBIE for agent in agents)


@pytest.fixture
def run(tmp_path: Path, start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run with a guest at work, whose agents outlive the controller."""
    monkeypatch.setenv("DFRS_CLAIMS_DIR", str(tmp_path / "claims"))
    path = tmp_path / "live.toml"
    path.write_text(path.read_text().replace('"remove"', '"keep"'))
    begun = start(JOBS)
    begun.until_at_work(1)
    return begun


def lose(run: Run) -> list[psutil.Process]:
    """Kill the controller; return the agents, which keep running."""
    agents = run.agents()
    run.process.kill()
    assert run.end() == -signal.SIGKILL
    assert alive(agents) == 2
    return agents


def test_a_run_that_waits_to_be_resumed_stays_until_it_is_abandoned(run: Run) -> None:
    assert "drives this run" in refusal("cleanup", "--abandon", str(run.path))
    assert cleanup() == (0, []), "a live controller holds the lab"
    agents = lose(run)
    record = json.loads((run.path / "lab.json").read_text())
    code, found = cleanup("--force")
    assert code == 1
    (kept,) = found
    assert kept["of"] == f"run {run.path}"
    assert kept["what"] == "agents node-a, node-b (2 at work), 0 images"
    assert "`testbed resume RUN` can continue it" in kept["kept"]
    assert alive(agents) == 2
    code, (removed,) = cleanup("--dry-run", "--abandon", str(run.path))
    assert (code, removed["kept"]) == (0, "")
    assert alive(agents) == 2
    code, found = cleanup("--abandon", str(run.path))
    assert code == 0, found
    assert {each["kept"] for each in found} == {""}
    assert not run.processes()
    assert not Path(record["folder"]).exists()
    assert not (run.path / "images").exists()
    assert not (run.path / "lab.json").exists()
    assert claims() == []
    last = read_journal(run.path / "events.jsonl")[-1]
    assert last["kind"] == "aborted"
    assert str(last["reason"]).startswith("abandoned by ")
    done = command("resume", str(run.path))
    assert done.returncode == 1, done.stderr
    assert json.loads((run.path / "summary.json").read_text())["complete"] is False, "the results so far"
    assert "ended early, and its guests were destroyed" in refusal("resume", str(run.path))
    assert "nothing waits to be resumed" in refusal("cleanup", "--abandon", str(run.path))
    assert cleanup() == (0, [])


def test_images_of_a_run_that_waits_outlast_a_restart_of_the_machine(run: Run) -> None:
    images = run.path / "images" / "node-a"
    for agent in lose(run):
        agent.kill()
        agent.wait(HANG_S)
    (images / "job-1-0.img").write_bytes(b"saved")
    for path, claim in claims():  # as if this machine had restarted since then
        assert claim.boot == boot_id()
        path.write_text(path.read_text().replace(boot_id(), "an-earlier-boot"))
    code, (kept,) = cleanup()
    assert code == 1
    assert kept["what"] == "agents node-a, node-b (0 at work), 1 images"
    assert (images / "job-1-0.img").exists()
    code, found = cleanup("--abandon", str(run.path))
    assert code == 0, found
    assert not (run.path / "images").exists()
    assert claims() == []


def test_agents_of_a_run_that_cannot_be_resumed_are_ended(run: Run) -> None:
    agents = lose(run)
    journal = run.path / "events.jsonl"
    begin = journal.read_bytes().splitlines(keepends=True)[0]
    journal.write_bytes(begin)  # the controller was lost before the replay began
    assert "remove its agents by `testbed cleanup`" in refusal("resume", str(run.path))
    code, found = cleanup()
    assert code == 0, found
    assert found[0]["of"] == f"run {run.path}"
    assert alive(agents) == 0
    assert not run.processes()
    assert claims() == []
    assert sorted(path.name for path in run.path.iterdir() if path.name in {"images", "lab.json"}) == []
    shutil.rmtree(run.path)  # otherwise its journal would be read as that of a run
