"""A node whose image disk is full: a job that cannot be saved continues or fails at once, and no other job waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.control.rehearsal import Watcher, five_jobs, rehearse

from node_agent.agent import Agent
from node_agent.drivers.null import NullDriver
from node_agent.drivers.protocol import DriverError, SaveReport
from testbed.control.image_room import RoomLedger
from testbed.measure.reasons import reason_of
from testbed.measure.spool import read_lines
from testbed.scheduling.workload.jobs import Job
from testbed.study.report.run.job_story import NO_ROOM
from testbed.study.report.run.job_story_reader import read_job_report

MPI = 2  # the first of the five jobs with a member on each node; it is preempted if there is space
FULL = "node-1"


def nodes(budget_mib: int) -> list[dict]:
    return [
        {"name": "node-0", "memory_mib": 1000},
        {"name": FULL, "memory_mib": 1000, "image_budget_mib": budget_mib},
    ]


def of_kind(journal: Sequence[dict], kind: str, **wanted: object) -> list[dict]:
    return [
        entry
        for entry in journal
        if entry["kind"] == kind and all(entry[name] == value for name, value in wanted.items())
    ]


def fail_saves(patch: pytest.MonkeyPatch, at_other_nodes: Callable[[NullDriver], object] | None = None) -> None:
    """Let saves on the full node fail while they write; on other nodes, await `at_other_nodes` first, if given."""
    open_, save = NullDriver.open, NullDriver.save

    async def noted(self: NullDriver, budget, tell_):
        self.node = budget.node
        return await open_(self, budget, tell_)

    async def full(self: NullDriver, guest: str, at: int | None, image: Path) -> SaveReport:
        if self.node == FULL:
            raise DriverError(f"image {image}: No space left on device")
        if at_other_nodes is not None:
            await at_other_nodes(self)
        return await save(self, guest, at, image)

    patch.setattr(NullDriver, "open", noted)
    patch.setattr(NullDriver, "save", full)


def test_there_are_saves_on_both_nodes_where_there_is_room(tmp_path: Path) -> None:
    result, journal = rehearse(tmp_path, five_jobs(), nodes=nodes(0))
    assert result.summary["done"] == 5
    assert any(1 in entry["nodes"] for entry in of_kind(journal, "intent", verb="save"))
    assert of_kind(journal, "intent", verb="save", job=MPI)
    assert not of_kind(journal, "no-room")


def test_what_has_no_room_runs_on_and_all_jobs_are_done(tmp_path: Path) -> None:
    result, journal = rehearse(tmp_path, five_jobs(), nodes=nodes(100))
    assert (result.summary["done"], result.summary["failed"]) == (5, {})
    assert not [entry for entry in of_kind(journal, "intent", verb="save") if 1 in entry["nodes"]]
    assert not of_kind(journal, "retry")
    refused = of_kind(journal, "no-room")
    assert refused
    assert {(entry["node"], entry["free_mib"]) for entry in refused} == {(1, 100)}
    assert all(entry["needed_mib"] >= 400 for entry in refused)
    assert len(refused) < len(of_kind(journal, "decision"))
    reported = [line for line, _ in read_lines(result.path) if line.startswith("node,") and "image_free_mib=" in line]
    assert reported
    assert all(f"node={FULL}" in line and "image_free_mib=100i" in line for line in reported)


def test_a_refusal_is_journalled_once_however_often_it_is_decided(tmp_path: Path) -> None:
    """One job must leave memory to another for as long as the other runs, and there is a decision every minute."""
    jobs = [Job(1, 0, 2, 1.0, 0.6, 3000), Job(2, 600, 2, 1.0, 0.6, 60)]
    policy = "GreedyPM */per/OPT=MIN"
    result, journal = rehearse(tmp_path, jobs, nodes=nodes(100), policy=policy, period_s=60)
    assert (result.summary["done"], result.summary["failed"]) == (2, {})
    refused = of_kind(journal, "no-room")
    ((job, verb, node, needed_mib, free_mib),) = {
        (entry["job"], entry["verb"], entry["node"], entry["needed_mib"], entry["free_mib"]) for entry in refused
    }
    assert (job, verb, node, needed_mib, free_mib) == (1, "save", 1, 600, 100)
    wanted = [1 in entry["view"]["job_id"] for entry in of_kind(journal, "decision")]
    assert len(refused) < sum(wanted) / 4


def test_a_save_that_has_room_again_is_made(tmp_path: Path) -> None:
    agents: dict[str, Agent] = {}
    run = Agent.run

    async def noted(self: Agent) -> None:
        agents[self._config.node] = self
        await run(self)

    more_s = 15.0

    def make_room(picture) -> None:
        if picture.wall_s >= more_s:
            agents[FULL]._room._budget_mib = 10_000

    jobs = [Job(1, 0, 2, 1.0, 0.6, 3000), Job(2, 600, 2, 1.0, 0.6, 600)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Agent, "run", noted)
        result, journal = rehearse(
            tmp_path, jobs, nodes=nodes(100), watcher=Watcher(make_room), policy="GreedyPM */OPT=MIN"
        )
    assert (result.summary["done"], result.summary["failed"]) == (2, {})
    begin_s = of_kind(journal, "replay")[0]["t_s"]
    (refused,) = of_kind(journal, "no-room")
    (saved, *_) = of_kind(journal, "intent", verb="save", job=1)
    assert refused["t_s"] - begin_s < more_s <= saved["t_s"] - begin_s < more_s + 2.0
    assert of_kind(journal, "outcome", verb="save", job=1)[0]["ok"]


def test_a_node_that_refuses_what_the_controller_took_for_possible_costs_no_job(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RoomLedger, "heard", lambda *_: False)  # no telemetry: the ledger knows only refusals
        result, journal = rehearse(tmp_path, five_jobs(), nodes=nodes(100))
    assert (result.summary["done"], result.summary["failed"]) == (5, {})
    refused = [entry for entry in of_kind(journal, "outcome", verb="save") if not entry["ok"]]
    assert refused
    assert all("no room for image" in entry["error"] and entry["elapsed_s"] < 1.0 for entry in refused)
    assert not of_kind(journal, "retry")
    assert {(entry["node"], entry["free_mib"]) for entry in of_kind(journal, "no-room")} == {(1, 100)}
    assert len(refused) <= 2 * len(five_jobs()), "without endless repeats"


def test_a_job_of_which_one_member_was_written_and_another_cannot_be_fails_at_once(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fail_saves(patch)
        result, journal = rehearse(tmp_path, five_jobs(), nodes=nodes(0))
    failed = {
        entry["job"]: reason_of(entry["detail"], entry["code"]).code
        for entry in of_kind(journal, "job", state="failed")
    }
    assert failed[MPI] == "save-failed"
    assert set(failed.values()) == {"save-failed"}
    assert result.summary["done"] == 5 - len(failed)
    several = [entry for entry in of_kind(journal, "outcome", verb="save", ok=False) if len(entry["nodes"]) > 1]
    assert several
    assert all(entry["elapsed_s"] < 1.0 for entry in several)
    assert not of_kind(journal, "retry")


def test_a_member_that_waits_for_one_that_cannot_be_written_goes_on_working(tmp_path: Path) -> None:
    """Members of an MPI job end together: a saved member waits for the others."""
    with pytest.MonkeyPatch.context() as patch:
        fail_saves(patch, lambda _driver: asyncio.Event().wait())
        jobs = [Job(1, 0, 2, 1.0, 0.6, 3000), Job(2, 600, 2, 1.0, 0.6, 60)]
        result, journal = rehearse(tmp_path, jobs, nodes=nodes(0), policy="GreedyPM */OPT=MIN")
    assert (result.summary["done"], result.summary["failed"]) == (2, {})
    tried = of_kind(journal, "outcome", verb="save", job=1)
    assert tried
    assert all(not entry["ok"] and entry["elapsed_s"] < 1.0 for entry in tried)
    assert len(tried) == 1, "no repeat while the state is the same"


def test_a_saved_job_whose_images_cannot_be_sent_resumes_where_they_are(tmp_path: Path) -> None:
    """Two images fill the disk of the target node of job 2, and are removed only when their jobs have resumed."""
    jobs = [Job(1, 0, 1, 1.0, 0.4, 1200), Job(2, 60, 2, 1.0, 0.4, 900), Job(3, 120, 1, 1.0, 0.5, 1500)]
    result, journal = rehearse(tmp_path, jobs, nodes=nodes(950))
    assert (result.summary["done"], result.summary["failed"]) == (3, {})
    (refused,) = of_kind(journal, "no-room", verb="transfer")
    (saved,) = of_kind(journal, "intent", verb="save", job=refused["job"])
    (restored,) = of_kind(journal, "intent", verb="restore", job=refused["job"])
    assert restored["nodes"] == saved["nodes"]
    assert not of_kind(journal, "intent", verb="transfer", job=refused["job"])


@pytest.mark.parametrize("full", [0, 1])
@pytest.mark.parametrize("budget_mib", [1, 350, 450, 550, 850, 950, 1300])
def test_all_jobs_end_whatever_the_room(tmp_path: Path, full: int, budget_mib: int) -> None:
    chosen = nodes(budget_mib)
    result, journal = rehearse(tmp_path, five_jobs(), nodes=chosen if full else chosen[::-1])
    assert (result.summary["done"], result.summary["failed"]) == (5, {})
    assert all(entry["ok"] for entry in of_kind(journal, "outcome")), "the ledger foresees all refusals"


def test_the_story_of_the_job_tells_of_it(tmp_path: Path) -> None:
    result, journal = rehearse(tmp_path, five_jobs(), nodes=nodes(100))
    refused = of_kind(journal, "no-room")[0]
    told = read_job_report(result.path, refused["job"])
    event = next(event for event in told.story.events if event.kind == NO_ROOM)
    assert event.facts["node"] == FULL
    assert (event.facts["needed_mib"], event.facts["free_mib"]) == (refused["needed_mib"], 100)
