"""Jobs that start again elsewhere: only after the fences of their guests have passed. In virtual time."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.control.disturbed import Disturbed
from support.control.rehearsal import scenario

from node_agent.drivers.null import NullDriver
from node_agent.drivers.protocol import DriverFacts, NodeBudget
from testbed.cli.why import why
from testbed.control.losses import Losses
from testbed.errors import UserError
from testbed.lab.fences import DESTROYED_WITHIN_S, DRIFT_FRAC, FENCES
from testbed.scheduling.workload.jobs import Job

FENCE_S = 20.0
SHORT = {"node_silence_s": 4.0, "node_lost_s": 6.0, "fence_s": FENCE_S}


def two_jobs() -> list[Job]:
    return [Job(1, 0, 1, 1.0, 0.6, 6000), Job(2, 0, 1, 1.0, 0.6, 3000)]


class Lives:
    """The lives of all guests, by the time of the loop: (task, driver, begin, end)."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.spans: list[tuple[str, int, float, float]] = []
        self._begun: dict[tuple[str, int], float] = {}
        put, stop, done = NullDriver._put, NullDriver.stop, NullDriver._done

        def begin(driver: NullDriver, spec, *arguments):
            self._begun[spec.guest, id(driver)] = asyncio.get_running_loop().time()
            return put(driver, spec, *arguments)

        def end(driver: NullDriver, guest: str) -> None:
            begin_s = self._begun.pop((guest, id(driver)), None)
            if begin_s is not None:
                self.spans.append((guest.partition("-r")[0], id(driver), begin_s, asyncio.get_running_loop().time()))

        async def stopped(driver: NullDriver, guest: str) -> None:
            end(driver, guest)
            await stop(driver, guest)

        def ended(driver: NullDriver, found) -> None:
            end(driver, found.spec.guest)
            done(driver, found)

        patch.setattr(NullDriver, "_put", begin)
        patch.setattr(NullDriver, "stop", stopped)
        patch.setattr(NullDriver, "_done", ended)

    def overlapping(self) -> list[tuple[str, float, float]]:
        """Return the times at which a task ran twice."""
        found = []
        for task, driver, begin_s, end_s in self.spans:
            for other, elsewhere, begins_s, ends_s in self.spans:
                if (task, True) == (other, driver < elsewhere) and max(begin_s, begins_s) < min(end_s, ends_s):
                    found.append((task, max(begin_s, begins_s), min(end_s, ends_s)))
        return found


@pytest.mark.parametrize("away_s", [15.0, 300.0])
def test_a_job_of_a_node_that_is_cut_off_runs_again_after_its_fence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away_s: float
) -> None:
    lives = Lives(monkeypatch)
    world = Disturbed(lambda world: world.cut(away_s, "agent-node-1"), at_s=10.0)
    summary, journal = world.run(tmp_path, two_jobs(), count=3, policy="EASY", on_node_loss="restart", deadlines=SHORT)
    assert (summary["done"], summary["failed"]) == (2, {})
    (waits,) = [entry for entry in journal if entry["kind"] == "fence-awaited"]
    assert waits["nodes"] == [1]
    again = next(entry for entry in journal if entry["kind"] == "job" and entry["state"] == "again")
    cleared = next(entry for entry in journal if entry["kind"] == "cleared" and entry["job"] == waits["job"])
    assert waits["t_s"] < cleared["t_s"] <= again["t_s"]
    if away_s > FENCE_S:  # its node could not be reached before
        assert cleared["t_s"] >= waits["until_s"] - 1e-3
        assert waits["until_s"] - 10.0 >= FENCE_S - FENCE_S / 4
    else:
        assert cleared["t_s"] < waits["until_s"]
    assert lives.overlapping() == []


def test_an_agent_destroys_the_guests_of_a_controller_that_it_does_not_hear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node is cut off for longer than the fence, but not declared lost: the job starts again on the same node."""
    lives = Lives(monkeypatch)
    world = Disturbed(lambda world: world.cut(40.0, "agent-node-1"), at_s=10.0)
    summary, journal = world.run(
        tmp_path, two_jobs(), count=3, policy="EASY", on_node_loss="restart", deadlines={**SHORT, "node_lost_s": 60.0}
    )
    assert (summary["done"], summary["failed"]) == (2, {})
    (withdrawn,) = [entry for entry in journal if entry["kind"] == "job" and entry["state"] == "withdrawn"]
    assert "until its fence" in withdrawn["detail"]
    assert lives.overlapping() == []


def test_the_fences_of_a_controller_that_is_heard_do_not_fall(tmp_path: Path) -> None:
    world = Disturbed(lambda _world: None)
    summary, journal = world.run(tmp_path, two_jobs(), count=3, policy="EASY", on_node_loss="restart", deadlines=SHORT)
    assert (summary["done"], summary["failed"]) == (2, {})
    assert [entry for entry in journal if entry["kind"] == "job" and entry["state"] == "withdrawn"] == []


def test_the_former_name_of_on_node_loss_is_accepted() -> None:
    assert scenario(on_guest_loss="restart").on_node_loss == "restart"
    with pytest.raises(UserError, match="on_node_loss alone"):
        scenario(on_guest_loss="restart", on_node_loss="restart")


def test_a_fence_outlasts_a_silence_twice() -> None:
    assert scenario(deadlines={"node_silence_s": 20.0, "node_lost_s": 60.0}).deadlines.fence_for_s == 40.0
    with pytest.raises(UserError, match="fence_s = 9: expected at least 2"):
        scenario(deadlines={"node_silence_s": 5.0, "fence_s": 9.0})


def test_why_shows_the_wait_for_a_fence(tmp_path: Path) -> None:
    world = Disturbed(lambda world: world.cut(300.0, "agent-node-1"), at_s=10.0)
    _, journal = world.run(tmp_path, two_jobs(), count=3, policy="EASY", on_node_loss="restart", deadlines=SHORT)
    (job,) = [entry["job"] for entry in journal if entry["kind"] == "fence-awaited"]
    found = CliRunner().invoke(why, [str(tmp_path / "run0"), str(job)])
    assert found.exit_code == 0, found.output
    assert "waits for the fences of its guests on node-1, which does not answer: for" in found.output


def test_a_controller_that_takes_over_accounts_for_the_fences_of_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new controller has granted no fence itself, and the node of the job is away for longer than the fence."""
    found: list[Losses] = []
    real = Losses.__init__

    def keep(losses: Losses, *arguments, **named) -> None:
        real(losses, *arguments, **named)
        found.append(losses)

    monkeypatch.setattr(Losses, "__init__", keep)
    taken_s: list[float] = []

    def take_over(world: Disturbed) -> None:
        (losses,) = found
        losses._clearing._book._falls_s.clear()  # as in a controller that has just started
        taken_s.append(asyncio.get_running_loop().time())
        losses.take_over(taken_s[0])
        world.cut(300.0, "agent-node-1")

    lives = Lives(monkeypatch)
    summary, journal = Disturbed(take_over, at_s=10.0).run(
        tmp_path, two_jobs(), count=3, policy="EASY", on_node_loss="restart", deadlines=SHORT
    )
    assert (summary["done"], summary["failed"]) == (2, {})
    (waits,) = [entry for entry in journal if entry["kind"] == "fence-awaited"]
    assert (
        waits["until_s"] >= taken_s[0] + FENCE_S / (1 - DRIFT_FRAC) + DESTROYED_WITHIN_S - 1e-3
    )  # later than by any reading before
    assert lives.overlapping() == []


def without_fences(patch: pytest.MonkeyPatch, *nodes: str) -> None:
    """Let the guests of these nodes outlive their fences while their agent does not work."""
    real = NullDriver.open

    async def open_(driver: NullDriver, budget: NodeBudget, tell) -> DriverFacts:
        facts = await real(driver, budget, tell)
        able = [each for each in facts.capabilities if each != FENCES or budget.node not in nodes]
        return replace(facts, capabilities=tuple(able))

    patch.setattr(NullDriver, "open", open_)


def test_a_job_is_not_started_elsewhere_if_nothing_destroys_its_guests_on_a_lost_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_fences(monkeypatch, "node-1")
    world = Disturbed(lambda world: world.cut(300.0, "agent-node-1"), at_s=10.0)
    summary, journal = world.run(tmp_path, two_jobs(), count=3, policy="EASY", on_node_loss="restart", deadlines=SHORT)
    assert (summary["done"], [*summary["failed"]]) == (1, ["2"])
    (failed,) = [entry for entry in journal if entry["kind"] == "job" and entry["state"] == "failed"]
    assert failed["code"] == "node-lost"
    assert re.fullmatch(
        r"node node-1 is lost \(.*\): not started elsewhere, as nothing destroys its guests there while its agent does "
        "not work",
        failed["detail"],
    )
    assert [entry for entry in journal if entry["kind"] == "fence-awaited"] == []


def test_a_node_that_returns_before_it_is_lost_keeps_its_jobs_whatever_enforces_its_fences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_fences(monkeypatch, "node-1")
    world = Disturbed(lambda world: world.cut(8.0, "agent-node-1"), at_s=10.0)
    summary, journal = world.run(
        tmp_path, two_jobs(), count=3, policy="EASY", on_node_loss="restart", deadlines={**SHORT, "node_lost_s": 15.0}
    )
    assert (summary["done"], summary["failed"]) == (2, {})
    assert not [entry for entry in journal if entry["kind"] == "job" and entry["state"] in ("withdrawn", "failed")]


@pytest.mark.parametrize("away_s", [40.0, 300.0])
def test_a_withdrawn_job_waits_for_the_word_of_a_node_that_may_not_enforce_fences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away_s: float
) -> None:
    """Meanwhile the other node of the job gets another agent. The job fails once its silent node is lost."""
    lives = Lives(monkeypatch)
    without_fences(monkeypatch, "node-1")

    def disturb(world: Disturbed) -> None:
        world.cut(away_s, "agent-node-1")
        world.kill("node-0", 1.0)

    summary, journal = Disturbed(disturb, at_s=10.0).run(
        tmp_path, [Job(1, 0, 2, 1.0, 0.6, 3000)], count=3, policy="EASY", on_node_loss="restart",
        deadlines={**SHORT, "node_lost_s": 60.0},
    )  # fmt: skip
    assert [entry["state"] for entry in journal if entry["kind"] == "job"][2] == "withdrawn"
    if away_s < 60.0:
        assert summary["done"] == 1
        cleared = next(entry for entry in journal if entry["kind"] == "cleared")
        assert cleared["t_s"] >= 10.0 + away_s - 1e-3
    else:
        assert (summary["done"], [*summary["failed"]]) == (0, ["1"])
        assert "not started elsewhere" in summary["failed"]["1"]
    assert lives.overlapping() == []
