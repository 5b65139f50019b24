"""`testbed resume` after a controller of real agents, guests and MPI jobs was killed, in each phase of its work."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.control import half_passing, killing
from support.control.live_run import ENDLESS_S, Run
from support.control.live_run import interrupting_policy as interrupting_policy  # noqa: PLC0414  # the fixture
from support.control.live_run import start as start  # noqa: PLC0414  # the fixture

from testbed.bus.address import BrokerAddress
from testbed.measure.rundir import read_journal
from testbed.run.reader import read_history

pytestmark = pytest.mark.slow

# jobs of one task and MPI jobs of two tasks; each is interrupted once, and continues with its nodes swapped
TWELVE = "".join(f"{job},{5 * job},{1 + job % 2},1.0,0.2,30\n" for job in range(1, 13))
PHASES = {
    "idle": {"kind": "job", "state": "submitted"},
    "starting": {"kind": "intent", "verb": "start", "nth": 4},
    "saving": {"kind": "intent", "verb": "save", "nth": 3},
    "transferring": {"kind": "intent", "verb": "transfer", "nth": 2},
    "restoring": {"kind": "intent", "verb": "restore", "nth": 2},
    "running": {"kind": "guest", "event": "progress", "nth": 5},
}


def in_each_phase(*quick: str) -> pytest.MarkDecorator:
    """Run a test in each phase; only `quick` phases run in continuous integration."""
    return pytest.mark.parametrize(
        "phase", [pytest.param(phase, marks=[pytest.mark.long] * (phase not in quick)) for phase in PHASES]
    )


@pytest.fixture
def keeping(tmp_path: Path, start: Callable[..., Run], install_plugin: Callable[[str, str, str], Path]) -> None:
    """Let agents and guests of the scenario outlive a controller that kills itself at an entry of the journal."""
    install_plugin(
        "dfrs_killing", Path(killing.__file__).read_text(), "[testbed.recorders]\nkilling = dfrs_killing:Killing\n"
    )
    path = tmp_path / "live.toml"
    path.write_text('recorders = ["killing"]\n' + path.read_text().replace('"remove"', '"keep"'))


@pytest.mark.usefixtures("keeping")
@in_each_phase("saving")
def test_every_job_ends_well_after_the_controller_was_killed(
    start: Callable[..., Run], interrupting_policy: str, phase: str
) -> None:
    variables = {"DFRS_KILL_AT": json.dumps(PHASES[phase])}
    run = start(TWELVE, "--policy", interrupting_policy, variables=variables)
    assert run.end() == -signal.SIGKILL, run.lines
    lost = read_history(run.path / "events.jsonl")
    assert not lost.ended
    resumed = start(TWELVE, command=("testbed", "resume", str(run.path)))
    assert resumed.end() == 0, resumed.lines
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["done"] == 12
    assert summary["results"] == {"right": 12, "wrong": {}, "unchecked": {}}
    history = read_history(run.path / "events.jsonl")
    assert history.resumes == 1
    assert summary["without_controller"]["blind_s"] > 0
    assert not (run.path / "lab.json").exists()


def test_a_rank_ends_whose_partner_alone_passed_the_last_barrier_before_the_controller_was_killed(
    tmp_path: Path, start: Callable[..., Run], install_plugin: Callable[[str, str, str], Path]
) -> None:
    install_plugin(
        "dfrs_half_passing", Path(half_passing.__file__).read_text(),
        "[testbed.recorders]\nhalf-passing = dfrs_half_passing:HalfPassing\n",
    )  # fmt: skip
    path = tmp_path / "live.toml"
    path.write_text('recorders = ["half-passing"]\n' + path.read_text().replace('"remove"', '"keep"'))
    jobs = "1,0,2,1.0,0.2,30\n"
    run = start(jobs, variables={"DFRS_HALF_PASSING": str(tmp_path / "stopped")})
    assert run.end() == -signal.SIGKILL, run.lines
    resumed = start(jobs, command=("testbed", "resume", str(run.path)))
    resumed.wait_for("the run continues")
    with contextlib.suppress(psutil.NoSuchProcess):  # the agent has continued the process already
        psutil.Process(int((tmp_path / "stopped").read_text())).resume()
    assert resumed.end() == 0, resumed.lines
    summary = json.loads((run.path / "summary.json").read_text())
    assert (summary["done"], summary["results"]["right"]) == (1, 1)


@pytest.mark.usefixtures("keeping")
@in_each_phase("running")
def test_every_job_ends_well_after_an_agent_was_killed(
    start: Callable[..., Run], interrupting_policy: str, phase: str
) -> None:
    variables = {"DFRS_KILL_AT": json.dumps({**PHASES[phase], "agent_of": "node-a"})}
    run = start(TWELVE, "--policy", interrupting_policy, variables=variables)
    assert run.end() == 0, run.lines
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["done"] == 12
    assert summary["results"] == {"right": 12, "wrong": {}, "unchecked": {}}
    assert any(
        "node-a" in entry["node"] for entry in read_journal(run.path / "events.jsonl") if entry["kind"] == "node"
    )


@pytest.mark.usefixtures("keeping")
def test_only_a_lost_run_can_be_resumed(start: Callable[..., Run]) -> None:
    jobs = f"1,0,1,1.0,0.2,{ENDLESS_S}\n"
    run = start(jobs)
    run.until_at_work(1)
    refused = start(jobs, command=("testbed", "resume", str(run.path)))
    assert refused.end() == 2
    holder = f"process {run.process.pid} on {socket.gethostname()}"
    (line,) = refused.lines
    assert line.startswith(f"testbed: {run.path}: {holder} drives this run: wait for its end, or stop it by `testbed ")
    run.process.kill()
    assert run.end() == -signal.SIGKILL
    resumed = start(jobs, command=("testbed", "resume", str(run.path)))
    resumed.wait_for("the run continues")
    second = start(jobs, command=("testbed", "resume", str(run.path)))
    assert second.end() == 2
    assert "drives this run" in second.lines[0]
    resumed.process.send_signal(signal.SIGINT)
    assert resumed.end() == 130
    over = start(jobs, command=("testbed", "resume", str(run.path)))
    assert over.end() == 2
    assert over.lines == [
        f"testbed: {run.path}: the run ended early, and its guests were destroyed: there is nothing to resume"
    ]
    assert [entry["kind"] for entry in read_journal(run.path / "events.jsonl")].count("resumed") == 1


def listener_at(broker: BrokerAddress) -> socket.socket:
    """Listen at the address of a killed controller's broker, which dies a moment after the controller."""
    while True:
        try:
            return socket.create_server((broker.host, broker.port))
        except OSError:
            time.sleep(0.01)


@pytest.mark.usefixtures("keeping")
def test_a_controller_that_cannot_take_a_run_over_leaves_it_for_the_next_one(start: Callable[..., Run]) -> None:
    jobs = f"1,0,1,1.0,0.2,{ENDLESS_S}\n"
    run = start(jobs)
    run.until_at_work(1)
    (program,) = run.programs()
    run.process.kill()
    assert run.end() == -signal.SIGKILL
    broker = BrokerAddress.parse(json.loads((run.path / "lab.json").read_text())["broker"])
    with listener_at(broker):
        refused = start(jobs, command=("testbed", "resume", str(run.path)))
        assert refused.end() in (1, 2)
        assert "the run was not taken over: it can be resumed again" in "\n".join(refused.lines)
    assert program.is_running()
    assert not (run.path / "summary.json").exists()
    resumed = start(jobs, command=("testbed", "resume", str(run.path)))
    resumed.wait_for("the run continues after ")
    assert program.is_running()
    resumed.process.send_signal(signal.SIGINT)
    assert resumed.end() == 130
    recovered = [entry for entry in read_journal(run.path / "events.jsonl") if entry["kind"] == "recovered"]
    assert [entry["adopted"] for entry in recovered] == [[1]]
