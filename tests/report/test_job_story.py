"""The story of one job, from runs of the real controller in virtual time, undisturbed and disturbed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.control.rehearsal import BEST, Watcher, five_jobs, rehearse
from support.entries import whole

from node_agent.agent import Agent
from node_agent.drivers.null import NullDriver
from node_agent.drivers.protocol import DriverError
from testbed.cli.why import why
from testbed.errors import UserError
from testbed.measure.rundir import read_journal
from testbed.run.events import Decision
from testbed.run.journal import read_events
from testbed.scheduling.workload.jobs import Job
from testbed.study.report.run.job_story_data import as_data
from testbed.study.report.run.job_story_reader import JobReport, read_job_report
from testbed.study.report.run.job_story_text import lines
from testbed.study.report.run.job_waits import CONTROLLER, IMAGE_AWAY, MEMORY, NODE_AWAY, OPERATION, POLICY, WAITS


def text(told: JobReport) -> str:
    return "\n".join(lines(told))


def events(told: JobReport, kind: str) -> list[dict[str, Any]]:
    return [event.facts for event in told.story.events if event.kind == kind]


def call(*words: object):
    result = CliRunner().invoke(why, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rehearse(tmp_path_factory.mktemp("runs"), five_jobs())[0].path


def test_operations_and_yields_are_those_of_the_journal(run: Path) -> None:
    journal = read_journal(run / "events.jsonl")
    for job in range(1, 6):
        told = read_job_report(run, job)
        outcomes = [entry for entry in journal if entry["kind"] == "outcome" and entry["job"] == job]
        found = events(told, "operation")
        assert [(each["verb"], each["elapsed_s"], each["bytes"]) for each in found] == [
            (entry["verb"], entry["elapsed_s"], entry["bytes"]) for entry in outcomes
        ]
        assert told.story.state == "done"
        assert told.story.reason is None
        assert {span.yield_frac for span in told.story.spans} <= {each["yield_frac"] for each in found}
        penalties = [entry["penalty_s"] for entry in journal if entry["kind"] == "rescheduling" and entry["job"] == job]
        assert [each["penalty_s"] for each in events(told, "rescheduling")] == penalties


def wanted(decision: Decision, job: int) -> dict[str, Any] | None:
    """Return the decided state of a job from the columns of a decision."""
    row = decision.view.job_id.index(job)
    first = sum(decision.view.tasks[:row])
    nodes = sorted(decision.decision.task_node[first : first + decision.view.tasks[row]])
    if nodes[0] < 0:
        return None
    return {"nodes": [f"node-{node}" for node in nodes], "yield_frac": decision.decision.yield_frac[row]}


def test_every_change_of_the_target_has_the_decision_that_made_it(run: Path) -> None:
    journal = [event for event in read_events(run / "events.jsonl") if isinstance(event, Decision)]
    for job in range(1, 6):
        told = {each["number"]: each for each in events(read_job_report(run, job), "decision")}
        before = None
        for number, event in enumerate(journal, 1):
            if job not in event.view.job_id:
                continue
            after = wanted(event, job)
            if after != before:
                assert told[number]["before"] == before
                assert told[number]["after"] == after
                assert told[number]["submitted"] == list(event.event.submitted)
                assert told[number]["periodic"] == event.event.periodic
            before = after


def test_a_batch_policy_lets_jobs_wait_for_its_choice(tmp_path: Path) -> None:
    jobs = [Job(1, 0, 2, 1.0, 0.4, 600), Job(2, 60, 2, 1.0, 0.4, 600), Job(3, 120, 1, 1.0, 0.4, 60)]
    told = read_job_report(rehearse(tmp_path, jobs, policy="FCFS")[0].path, 3)
    assert set(told.story.waited_s()) <= {POLICY, CONTROLLER}
    assert told.story.waited_s()[POLICY] == pytest.approx((told.row.start_time_s - 120) / 60, abs=0.1)
    first, chosen = events(told, "decision")[:2]
    assert (first["submitted"], first["after"]) == ([3], None)
    assert (chosen["ended"], chosen["left_out"]) == ([{"job": 2, "state": "done"}], 1)
    words = f"decision {chosen['number']} (job 2 done), after 1 more without this job: run on node-0 at yield 1.00"
    assert words in text(told)


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four jobs that lost the second of its nodes."""
    jobs = [
        Job(1, 0, 1, 1.0, 0.4, 1200), Job(2, 0, 1, 1.0, 0.4, 1200), Job(3, 1200, 1, 1.0, 0.4, 600),
        Job(4, 1300, 2, 1.0, 0.7, 60),
    ]  # fmt: skip
    agents: list[Agent] = []
    run = Agent.run

    async def remember(self: Agent) -> None:
        agents.append(self)
        await run(self)

    def stop_one(picture: Any) -> None:
        if picture.trace_s > 600 and picture.nodes[1].online:
            agents[1].stop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Agent, "run", remember)
        return rehearse(tmp_path_factory.mktemp("lost"), jobs, watcher=Watcher(stop_one))[0].path


def test_the_job_of_a_lost_node_says_so_first(lost: Path) -> None:
    told = read_job_report(lost, 2)
    head, reason, *_ = text(told).splitlines()
    assert head.startswith("job 2 failed at 0:10:")
    assert "node node-1 is lost (its agent ended); it had run for 10." in head
    assert " of 1200 trace s of its work done" in head
    assert reason == "  reason: node-lost (a node that held the job's guests or images went away)"
    assert [(each["node"], each["online"]) for each in events(told, "node")] == [("node-1", False)]
    assert text(told).splitlines()[-1].endswith("failed (node-lost): node node-1 is lost (its agent ended)")


def test_a_job_that_does_not_fit_never_ran(lost: Path) -> None:
    told = read_job_report(lost, 4)
    assert told.story.reason is not None
    assert told.story.reason.code == "does-not-fit"
    assert "it never ran" in text(told).splitlines()[0]
    assert [event.kind for event in told.story.events] == ["node", "submitted", "decision", "ended"]
    assert "node node-1 is away: its agent ended" in text(told)


def test_a_job_on_another_node_tells_what_became_of_that_node(lost: Path) -> None:
    told = read_job_report(lost, 1)
    assert told.story.state == "done"
    assert events(told, "node") == [{"node": "node-1", "online": False, "reason": "its agent ended"}]


def test_a_save_that_fails_for_good_is_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = NullDriver.save

    async def broken(self: NullDriver, guest: str, at: int | None, image: Path):
        if "-j1-" in guest:
            raise DriverError("no space left")
        return await save(self, guest, at, image)

    monkeypatch.setattr(NullDriver, "save", broken)
    told = read_job_report(rehearse(tmp_path, five_jobs())[0].path, 1)
    assert told.story.reason is not None
    assert told.story.reason.code == "save-failed"
    last = events(told, "operation")[-1]
    assert (last["verb"], last["ok"]) == ("save", False)
    assert "no space left" in last["error"]
    assert "save on node-" in text(told)


def test_a_code_of_the_journal_is_passed_on(journal: Journal) -> None:
    journal.write(0, "node", node="node-b", online=False, reason="silent for 9.0 s", code="silent")
    journal.decide(0, {1: [0]}, (1,))
    journal.write(1, "retry", job=1, action=1, attempt=1, error="no", code="refused")
    journal.write(2, "job", job=1, state="failed", detail="node node-a was lost (silent for 9 s)", code="later")
    told = read_job_report(journal.folder, 1)
    assert [event.facts["code"] for event in told.story.events if "code" in event.facts] == [
        "silent",
        "refused",
        "later",
    ]
    assert as_data(told)["reason"] == {"code": "later", "text": "node node-a was lost (silent for 9 s)"}
    assert "  reason: later" in text(told).splitlines()


def test_attempts_are_told_with_their_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = NullDriver.start
    failures = iter([True])

    async def flaky(self: NullDriver, spec, cap_cores: float) -> None:
        if spec.job == 2 and "alone" not in spec.guest and next(failures, False):
            raise DriverError("out of pids")
        await start(self, spec, cap_cores)

    monkeypatch.setattr(NullDriver, "start", flaky)
    told = read_job_report(rehearse(tmp_path, five_jobs())[0].path, 2)
    (retry,) = events(told, "retry")
    assert retry["attempt"] == 1
    assert "attempt 1 failed, tried again: node-" in text(told)
    assert "out of pids" in text(told)
    assert told.story.state == "done"


def test_json_has_the_facts_of_the_text(lost: Path) -> None:
    data = json.loads(call(lost, 2, "--json").stdout)
    assert (data["job"], data["state"], data["run_ended"]) == (2, "failed", True)
    assert data["reason"] == {"code": "node-lost", "text": "node node-1 is lost (its agent ended)"}
    assert data["ran_s"] == pytest.approx(sum(each["end_s"] - each["begin_s"] for each in data["ran"]))
    assert data["events"][0]["kind"] == "submitted"
    assert data["events"][-1]["code"] == "node-lost"
    assert call(lost, 2).stdout.splitlines() == list(lines(read_job_report(lost, 2)))


def test_a_failed_job_is_no_failure_of_the_command(lost: Path) -> None:
    assert call(lost, 2).exit_code == 0


def test_a_job_that_is_not_there_is_told_with_those_that_are(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no job 6: expected one of 1 to 5$") as refused:
        call(run, 6)
    assert refused.value.exit_code == 2
    with pytest.raises(UserError, match="no such run directory"):
        call(tmp_path / "nowhere", 1)
    with pytest.raises(UserError, match=r"events\.jsonl: cannot read"):
        call(tmp_path, 1)
    assert call(run, "x").exit_code == 2


def test_an_entry_that_no_run_writes_is_named(run: Path, tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text('{"t_s":0,"trace_s":0,"kind":"intent","job":1}\n')
    with pytest.raises(UserError, match=r"not an entry of a run's journal: intent: .*`action`"):
        read_job_report(tmp_path, 1)


class Journal:
    """Writes the journal of a run of two nodes with 1000 MiB each, entry by entry."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        nodes = {name: {"memory_mib": 1000} for name in ("node-a", "node-b")}
        clocks = {"anchor_unix_ns": 1_795_380_000_000_000_000, "replay_begin_s": 0.0, "time_scale": 1.0}
        (folder / "manifest.json").write_text(
            json.dumps({"run": folder.name, "scenario": {}, "nodes": nodes, "clocks": clocks, "policy": BEST})
        )
        self.write(0, "replay", jobs=0, trace=[])
        self._number = 0

    def write(self, at_s: float, kind: str, **entry: Any) -> None:
        with (self.folder / "events.jsonl").open("a") as file:
            file.write(json.dumps(whole({"t_s": at_s, "kind": kind, "trace_s": at_s, **entry})) + "\n")

    def decide(
        self, at_s: float, nodes: dict[int, list[int]], submitted: tuple[int, ...] = (),
        again: tuple[int, ...] = (), **view: Any,
    ) -> None:  # fmt: skip
        """Write a decision for jobs of one task and 0.6 of a node's memory; job to its node, empty if it waits."""
        jobs = list(nodes)
        count = len(jobs)
        for job in submitted:
            self.write(at_s, "job", job=job, state="submitted")
        columns = {"submit_time_s": 0.0, "tasks": 1, "cpu_need_frac": 1.0, "mem_req_frac": 0.6, "virtual_time_s": 0.0}
        shown = {"job_id": jobs, "node_available": [True, True], **{k: [v] * count for k, v in columns.items()}, **view}
        event = {"completed": [], "submitted": [*submitted, *again], "periodic": False, "changed": False}
        places = [(nodes[job] or [-1])[0] for job in jobs]
        yields = [1.0 if nodes[job] else 0.0 for job in jobs]
        decision = {"task_node": places, "yield_frac": yields}
        self.write(at_s, "decision", policy=BEST, view=shown, event=event, decision=decision)

    def operate(self, begin_s: float, end_s: float | None, verb: str, job: int, node: int) -> None:
        self._number += 1
        named = {"action": self._number, "verb": verb, "job": job, "nodes": [node]}
        self.write(begin_s, "intent", **named, yield_frac=1.0, guests=[])
        if end_s is not None:
            told = {"ok": True, "error": None, "elapsed_s": end_s - begin_s, "waited_s": 0.0, "bytes": 5_000_000}
            self.write(end_s, "outcome", **named, **told)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "run")


def test_a_start_waits_for_the_memory_that_a_save_frees(journal: Journal) -> None:
    journal.decide(0, {1: [0]}, (1,))
    journal.operate(0, 1, "start", 1, 0)
    journal.decide(2, {1: [], 2: [0]}, (2,))
    journal.operate(3, 7, "save", 1, 0)
    journal.operate(7, 8, "start", 2, 0)
    told = read_job_report(journal.folder, 2)
    assert told.story.waited_s() == {MEMORY: 5.0}
    (start,) = events(told, "operation")
    assert [(each["kind"], each["waited_s"], each["nodes"], each["jobs"]) for each in start["waits"]] == [
        (MEMORY, 5.0, ["node-a"], [1])
    ]
    assert "took 1.00 s, 5.0 MB moved; had waited 5.00 s for memory of node-a (held by job 1)" in text(told)
    paused = read_job_report(journal.folder, 1)
    assert paused.story.waits_for is not None
    assert paused.story.waits_for.kind == POLICY
    assert text(paused).startswith("job 1 waits for the policy to choose it when the journal ends at 0:00:08")


def test_jobs_that_are_tried_again_are_not_told_as_submitted(journal: Journal) -> None:
    journal.decide(0, {1: []}, (1,))
    journal.decide(2, {1: [], 2: []}, (2,))
    journal.decide(3, {1: [], 2: [1]}, again=(1,))
    _, chosen = events(read_job_report(journal.folder, 2), "decision")
    assert (chosen["submitted"], chosen["tried_again"]) == ([], [1])
    assert "decision 3 (job 1 tried again): run on node-b at yield 1.00" in text(read_job_report(journal.folder, 2))


def test_a_cap_waits_for_the_start_of_its_own_job(journal: Journal) -> None:
    journal.decide(0, {1: [0]}, (1,))
    journal.operate(0, None, "start", 1, 0)
    journal.decide(2, {1: [1]})
    journal.write(4, "guest", job=1, task=0, node=0, event="progress", detail={"units": 1})
    told = read_job_report(journal.folder, 1)
    assert told.story.waits_for is not None
    assert (told.story.waits_for.kind, told.story.waits_for.behind) == (OPERATION, "start")
    assert "is being started when the journal ends" in text(told)
    assert "start on node-a at yield 1.00: in progress for 4.00 s at the end" in text(told)


@pytest.mark.parametrize(
    ("away", "kind", "words"),
    [(1, NODE_AWAY, "waits for node-b to come back"), (0, IMAGE_AWAY, "waits for node-a with its image to come back")],
)
def test_a_saved_job_waits_for_a_node(journal: Journal, away: int, kind: str, words: str) -> None:
    journal.decide(0, {1: [0]}, (1,))
    journal.operate(0, 1, "start", 1, 0)
    journal.decide(2, {1: []})
    journal.operate(2, 3, "save", 1, 0)
    journal.write(4, "node", node=("node-a", "node-b")[away], online=False, reason="silent for 9.0 s")
    journal.decide(5, {1: [1]}, node_available=[away != 0, away != 1])
    journal.write(9, "clock", unix_ns=0)
    told = read_job_report(journal.folder, 1)
    assert told.story.waited_s() == {POLICY: 2.0, kind: 4.0}
    assert words in text(told).splitlines()[0]
    assert "decision 3 (node node-" in text(told)


def test_a_failed_job_holds_memory_until_its_guests_are_gone(journal: Journal) -> None:
    journal.write(0, "begin", version=3)
    journal.decide(0, {1: [0]}, (1,))
    journal.operate(0, 1, "start", 1, 0)
    journal.write(2, "job", job=1, state="failed", detail="task 0: it ended by itself: exit code 1")
    journal.decide(2, {2: [0]}, (2,))
    journal.write(5, "cleared", job=1)
    journal.operate(6, 7, "start", 2, 0)
    journal.decide(7, {2: [0], 3: [1]}, (3,))
    journal.operate(7, 8, "start", 3, 1)
    told = read_job_report(journal.folder, 2)
    assert told.story.waited_s() == {MEMORY: 3.0, CONTROLLER: 1.0}
    assert read_job_report(journal.folder, 3).story.waited_s() == {}
    assert text(read_job_report(journal.folder, 1)).splitlines()[1].strip().startswith("reason: guest-failed")


def test_a_journal_that_contradicts_itself_is_refused_with_its_line(journal: Journal) -> None:
    journal.decide(0, {1: [0]}, (1,))
    journal.operate(0, 1, "start", 1, 0)
    journal.write(2, "job", job=1, state="done")
    where = r"events\.jsonl:6: job done of job 1 at 2 s: running -> done is illegal: expected a job without"
    with pytest.raises(UserError, match=where) as found:
        call(journal.folder, 1)
    assert "\n" not in str(found.value)


def test_a_job_that_is_withdrawn_neither_runs_nor_waits_until_it_is_run_again(journal: Journal) -> None:
    journal.decide(0, {1: [0]}, (1,))
    journal.operate(0, 1, "start", 1, 0)
    journal.write(4, "job", job=1, state="withdrawn", detail="node node-a is lost")
    journal.write(6, "job", job=1, state="again")
    journal.decide(7, {1: [1]}, again=(1,))
    journal.operate(7, 8, "start", 1, 1)
    journal.write(9, "clock", unix_ns=0)
    story = read_job_report(journal.folder, 1).story
    assert [(span.begin_s, span.end_s, span.nodes) for span in story.spans] == [
        (1, 4, ("node-a",)),
        (8, 9, ("node-b",)),
    ]
    assert story.waited_s() == {POLICY: 1.0}


def test_guests_events_and_checks_are_told(journal: Journal) -> None:
    journal.decide(0, {1: [0]}, (1,))
    journal.operate(0, 1, "start", 1, 0)
    guest = {"job": 1, "task": 0, "node": 0}
    journal.write(2, "guest", **guest, event="drift", detail={"found": 0.4, "wanted": 0.2})
    journal.write(3, "guest", **guest, event="ended", detail={"units": 1})
    journal.write(3, "job", job=1, state="done")
    wrong = "it is done with checksum 0; its work comes to 1"
    journal.write(4, "guest", **guest, event="failed", detail={"reason": wrong})
    journal.write(4, "job", job=1, state="failed", detail=f"task 0: {wrong}")
    told = read_job_report(journal.folder, 1)
    found = text(told)
    assert told.story.reason is not None
    assert (told.story.state, told.story.reason.code, told.story.t_s) == ("failed", "wrong-result", 4)
    assert "task 0 on node-a: its cap was 0.4 cores instead of 0.2, and set again" in found
    assert "task 0 on node-a: ended, its result is being checked" in found
    assert f"task 0 on node-a: failed: {wrong}" in found


def test_a_live_migration_that_failed_tells_what_both_ends_had(journal: Journal) -> None:
    journal.decide(0, {1: [0]}, (1,))
    journal.operate(0, 1, "start", 1, 0)
    ends = {"job": 1, "task": 0, "source": 0, "target": 1}
    journal.write(2, "migration", **ends, error="no progress for 20 s", at_source=True, at_target=None)
    journal.write(3, "aborted", reason="interrupted")
    told = read_job_report(journal.folder, 1)
    assert "at the source: present, at the target: unknown" in text(told)
    assert text(told).splitlines()[-1].endswith("the run was aborted: interrupted")
    assert as_data(told)["run_aborted"] == "interrupted"


def test_a_run_without_a_manifest_has_seconds_and_numbers(journal: Journal) -> None:
    journal.decide(0, {1: [0]}, (1,))
    journal.operate(0.5, 1, "start", 1, 0)
    (journal.folder / "manifest.json").unlink()
    found = text(read_job_report(journal.folder, 1))
    assert "+0.5 s" in found
    assert "start on node 0 at yield 1.00" in found


def test_the_page_has_the_codes_of_waits() -> None:
    page = Path(__file__).parents[2] / "docs" / "journal.md"
    section = page.read_text(encoding="utf-8").partition("## Waits")[2].partition("\n## ")[0]
    found = dict(re.findall(r"^\| `([a-z-]+)` \| (.*?) *\|$", section, re.MULTILINE))
    assert found.pop("kind") == "meaning"
    assert found == WAITS
