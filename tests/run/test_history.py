"""The state of a run, folded from its journal: legal transitions, illegal ones, and journals of older versions."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from support.entries import event
from support.old_runs.old_run_archive import RUNS, unpack

from testbed.errors import UserError
from testbed.measure.rundir import read_json
from testbed.run import events
from testbed.run.events import kind_of
from testbed.run.history import History, fold
from testbed.run.journal import encode, read_events
from testbed.run.phases import COURSES, IllegalEventError, Phase
from testbed.run.reader import read_history
from testbed.study.report.run.facts import read_facts

BEGIN = {"kind": "begin", "version": events.VERSION}
REPLAY = {"kind": "replay", "jobs": 1, "trace": [{"job": 1, "tasks": 2, "run_time_s": 60.0}], "nodes": ["a", "b"]}
SUBMITTED = {"kind": "job", "job": 1, "state": "submitted"}
CHOSEN = {"kind": "job", "job": 1, "state": "running"}
IMAGES = [{"name": f"i{task}", "bytes": 5, "digest": "d"} for task in (0, 1)]


def job(state: str, **more: object) -> dict[str, Any]:
    return {"kind": "job", "job": 1, "state": state, **more}


def intent(verb: str, number: int = 1, nodes: tuple[int, ...] = (0, 1), **more: object) -> dict[str, Any]:
    return {"kind": "intent", "action": number, "verb": verb, "job": 1, "nodes": nodes, "yield_frac": 0.5, **more}


def outcome(verb: str, number: int = 1, *, ok: bool = True, **more: object) -> dict[str, Any]:
    return {"kind": "outcome", "action": number, "verb": verb, "job": 1, "nodes": (0, 1), "ok": ok, **more}


def guest(what: str, task: int, node: int, **detail: object) -> dict[str, Any]:
    return {"kind": "guest", "job": 1, "task": task, "node": node, "event": what, "detail": detail}


STARTED = [BEGIN, REPLAY, SUBMITTED, CHOSEN, intent("start"), outcome("start")]
SAVED = [*STARTED, intent("save", 2, images=("i0", "i1")), outcome("save", 2, images=IMAGES, reason="preemption")]


def history(*entries: dict[str, Any]) -> History:
    return fold(event({"t_s": float(number), **entry}) for number, entry in enumerate(entries))


def phase(*entries: dict[str, Any]) -> Phase:
    return history(*entries).jobs[1].phase


@pytest.mark.parametrize("verb", COURSES)
def test_an_operation_leads_to_its_phases_and_back_when_it_fails(verb: str) -> None:
    course = COURSES[verb]
    before = {Phase.WAITING: STARTED[:4], Phase.RUNNING: STARTED, Phase.SAVED: SAVED}[course.before]
    assert phase(*before) is course.before
    assert phase(*before, intent(verb, 3)) is course.during
    assert phase(*before, intent(verb, 3), outcome(verb, 3)) is course.after
    failed = history(*before, intent(verb, 3), outcome(verb, 3, ok=False, error="no", code="stays")).jobs[1]
    assert failed.phase is course.before
    assert failed.flight is None
    assert failed.running_on == ((0, 1) if course.before is Phase.RUNNING else None)
    assert failed.migrating_to is None
    assert failed.live_refused is (verb == "migrate")


def test_a_given_up_operation_leaves_its_guests_until_they_are_destroyed() -> None:
    given_up = [*STARTED[:5], job("failed", code="node-lost", detail="n"), outcome("start", ok=False, code="cancelled")]
    lost = history(*given_up).jobs[1]
    assert (lost.phase, lost.running_on, lost.failure_code, lost.failure_text) == (
        Phase.FAILED, (0, 1), "node-lost", "n",
    )  # fmt: skip
    assert history(*given_up, {"kind": "cleared", "job": 1}).jobs[1].running_on is None


def test_images_are_known_where_they_are() -> None:
    saved = history(*SAVED)
    assert saved.jobs[1].saved_on == (0, 1)
    assert saved.jobs[1].image_holders == {(0, "i0"), (1, "i1")}
    assert [image.name for image in saved.jobs[1].images] == ["i0", "i1"]
    moving = [*SAVED, intent("transfer", 3, (0, 0), images=("i0", "i1"))]
    assert history(*moving).jobs[1].image_holders == {(0, "i0"), (1, "i1"), (0, "i1")}
    assert history(*moving, outcome("transfer", 3)).jobs[1].saved_on == (0, 0)
    gone = history(*SAVED, {"kind": "returned", "node": "b", "reachable": True, "missing": ["i1"]})
    assert gone.jobs[1].image_holders == {(0, "i0")}
    assert history(*SAVED, {"kind": "images-dropped", "job": 1}).jobs[1].image_holders == set()


def test_a_node_that_was_asked_while_it_wrote_an_image_may_have_it() -> None:
    missing = {"kind": "returned", "node": "b", "reachable": True, "missing": ["i1"]}
    saving = [*STARTED, intent("save", 2, images=("i0", "i1")), missing]
    assert history(*saving).jobs[1].image_holders == {(0, "i0"), (1, "i1")}
    saved = history(*saving, outcome("save", 2, images=IMAGES, reason="preemption")).jobs[1]
    assert saved.whole_copies == saved.image_holders == {(0, "i0"), (1, "i1")}
    failed = [*saving, outcome("save", 2, ok=False, error="no", code="save-failed")]
    assert history(*failed).jobs[1].image_holders == {(0, "i0"), (1, "i1")}
    assert history(*failed, missing).jobs[1].image_holders == {(0, "i0")}
    moving = [*SAVED, intent("transfer", 3, (1, 1), images=("i0", "i1")), {**missing, "missing": ["i0", "i1"]}]
    assert history(*moving).jobs[1].image_holders == {(0, "i0"), (1, "i0")}
    moved = history(*moving, outcome("transfer", 3, nodes=(1, 1))).jobs[1]
    assert moved.image_holders == {(0, "i0"), (1, "i0"), (1, "i1")}


def test_a_job_is_done_when_its_tasks_are_and_its_result_may_be_wrong_later() -> None:
    ends = [*STARTED, guest("ended", 0, 0, checksum="c", units=7), guest("done", 1, 1, checksum="d", units=8)]
    done = history(*ends, job("done")).jobs[1]
    assert (done.phase, done.finished_tasks, done.checksums) == (Phase.DONE, {0, 1}, {0: "c", 1: "d"})
    assert (done.unchecked, done.units_done, done.running_on) == ({0: 0}, {0: 7, 1: 8}, None)
    wrong = history(*ends, job("done"), guest("failed", 0, 0), job("failed", code="wrong-result", detail="w")).jobs[1]
    assert (wrong.phase, wrong.unchecked, wrong.failure_code) == (Phase.FAILED, {}, "wrong-result")


def test_what_a_node_says_of_guests_that_it_does_not_run_changes_nothing() -> None:
    assert history(*STARTED, guest("done", 0, 1)).jobs[1].finished_tasks == set()


def test_guests_of_a_live_migration_are_where_they_arrived() -> None:
    begun = [*STARTED, intent("migrate", 2, (1, 1))]
    both = history(*begun)
    assert both.on_node(0) == [(1, 0)]
    assert both.on_node(1) == [(1, 0), (1, 1)]
    there = history(*begun, {"kind": "migration", "job": 1, "task": 0, "source": 0, "target": 1}).jobs[1]
    assert there.running_on == (1, 1)
    done = history(
        *begun, {"kind": "migration", "job": 1, "task": 0, "source": 0, "target": 1}, outcome("migrate", 2, bytes=9)
    ).jobs[1]
    (interruption,) = done.interruptions
    assert (interruption.mechanism, interruption.moved_tasks, interruption.migrated_bytes) == ("live", 1, 9)


def test_a_withdrawn_job_runs_again_from_its_images_or_from_the_beginning() -> None:
    withdrawn = [*SAVED, job("withdrawn", detail="node a is lost")]
    again = history(*withdrawn, job("again", images_on=[1, 1])).jobs[1]
    assert (again.phase, again.saved_on, again.restarts, again.withdrawn) == (Phase.SAVED, (1, 1), 1, "")
    anew = history(*withdrawn, {"kind": "images-dropped", "job": 1}, job("again")).jobs[1]
    assert (anew.phase, anew.saved_on, anew.images) == (Phase.WAITING, None, ())


def test_nodes_are_reachable_again_when_they_were_asked() -> None:
    def node(standing: str, **more: object) -> dict[str, Any]:
        return {"kind": "node", "node": "b", "standing": standing, "online": standing == "online", **more}

    def of_b(*entries: dict[str, Any]) -> tuple[bool, bool]:
        found = history(BEGIN, REPLAY, *entries).nodes[1]
        return found.available, found.reachable

    assert of_b() == (True, True)
    assert of_b(node("suspect")) == (True, False)
    assert of_b(node("lost")) == (False, False)
    assert of_b(node("lost"), node("online")) == (True, False)
    back = {"kind": "returned", "node": "b", "reachable": True}
    assert of_b(node("lost"), node("online"), back) == (True, True)


def order(word: str, node: str | None = None, **more: object) -> dict[str, Any]:
    return {"kind": "order", "order": word, "node": node, "by": "user 0, process 1", **more}


def decision(nodes: tuple[int, ...], **more: object) -> dict[str, Any]:
    view = {"job_id": [1], "tasks": [2]}
    choice = {"task_node": list(nodes), "yield_frac": [0.5 if nodes[0] >= 0 else 0.0]}
    return {"kind": "decision", "view": {**{key: [0.0] for key in COLUMNS}, **view}, "decision": choice, **more}


COLUMNS = ("submit_time_s", "cpu_need_frac", "mem_req_frac", "virtual_time_s")
SAVED_FOR_A_PAUSE = [
    *STARTED, decision((0, 1)), order("pause", t_s=10.0), intent("save", 2, images=("i0", "i1"), t_s=10.0),
    outcome("save", 2, images=IMAGES, reason="pause", t_s=12.0),
]  # fmt: skip
GOES_ON = {"kind": "clock-started", "stood_still_s": 91.0, "t_s": 101.0}


def test_orders_hold_a_run_until_trace_time_goes_on() -> None:
    def hold(*entries: dict[str, Any]) -> str:
        return history(*STARTED, *entries).standstill.hold

    assert hold() == ""
    assert hold(order("pause")) == "paused"
    assert hold(order("pause"), order("continue")) == "resuming"
    assert hold(order("pause"), order("continue"), order("pause")) == "paused"
    assert hold(order("pause"), order("continue"), GOES_ON) == ""
    assert hold(order("pause"), order("stop")) == "stopping"
    assert hold(order("stop")) == "stopping"


def test_standstills_are_left_out_of_the_clock_of_a_run() -> None:
    standstill = history(*STARTED, order("pause", t_s=10.0), order("continue", t_s=95.0), GOES_ON).standstill
    assert [standstill.clock_s(t_s) for t_s in (5.0, 10.0, 50.0, 101.0, 111.0)] == [5.0, 10.0, 10.0, 10.0, 20.0]
    assert standstill.within_s(0.0, 50.0) == 40.0
    open_still = history(*STARTED, order("pause", t_s=10.0)).standstill
    assert (open_still.clock_s(8.0), open_still.clock_s(30.0)) == (8.0, 10.0)


def test_a_drained_node_is_not_available_but_obeys_commands_and_stays_drained_when_it_was_away() -> None:
    def of_b(*entries: dict[str, Any]) -> tuple[bool, bool, bool]:
        found = history(BEGIN, REPLAY, *entries).nodes[1]
        return found.available, found.reachable, found.lost

    away = {"kind": "node", "node": "b", "standing": "lost", "online": False}
    back = [{**away, "standing": "online", "online": True}, {"kind": "returned", "node": "b", "reachable": True}]
    assert of_b(order("drain", "b")) == (False, True, False)
    assert of_b(order("drain", "b"), away) == (False, False, True)
    assert of_b(order("drain", "b"), away, *back) == (False, True, False)
    assert of_b(order("drain", "b"), away, *back, order("return", "b")) == (True, True, False)


def test_a_save_for_a_pause_is_no_rescheduling_and_the_pause_is_no_wait() -> None:
    restored = [
        *SAVED_FOR_A_PAUSE, order("continue", t_s=100.0), intent("restore", 3, t_s=100.0),
        outcome("restore", 3, t_s=101.0),
    ]  # fmt: skip
    found = history(*restored, GOES_ON).jobs[1]
    assert (found.preemptions, found.migrations, found.reschedulings) == (0, 0, [])
    (pause,) = found.interruptions
    assert (pause.save_s, pause.wait_s, pause.paused_s, pause.restore_s) == (2.0, 0.0, 0.0, 1.0)
    assert pause.held_wait_s == 88.0
    closed = history(*restored, GOES_ON, {"kind": "suspension", "job": 1, "reason": "pause", "penalty_s": 3.5}).jobs[1]
    assert closed.present is None
    assert closed.interruptions[0].complete
    assert closed.interruptions[0].penalty_s is None, "this interruption has no penalty"


@pytest.mark.parametrize(
    ("nodes", "reason"), [((0, 1), "pause"), ((1, 0), "pause"), ((0, 0), "migration"), ((-1, -1), "preemption")]
)
def test_a_job_that_does_not_resume_where_it_was_is_rescheduled(nodes: tuple[int, int], reason: str) -> None:
    after = [order("continue", t_s=100.0), {**GOES_ON, "t_s": 100.0}, decision(nodes, t_s=100.0)]
    (found,) = history(*SAVED_FOR_A_PAUSE, *after).jobs[1].interruptions
    assert found.reason == reason
    assert found.is_rescheduling == (reason != "pause")


def test_a_preemption_that_is_open_in_a_pause_leaves_the_pause_out() -> None:
    entries = [
        *STARTED, decision((-1, -1), t_s=6.0), job("paused", t_s=6.0), intent("save", 2, images=("i0", "i1"), t_s=6.0),
        outcome("save", 2, images=IMAGES, reason="preemption", t_s=8.0), order("pause", t_s=10.0),
        order("continue", t_s=100.0), {**GOES_ON, "t_s": 100.0}, decision((0, 1), t_s=110.0),
        job("resumed", t_s=110.0), intent("restore", 3, t_s=111.0), outcome("restore", 3, t_s=112.0),
    ]  # fmt: skip
    (found,) = history(*entries).jobs[1].interruptions
    assert (found.paused_s, found.wait_s, found.held_paused_s, found.held_wait_s) == (12.0, 1.0, 90.0, 0.0)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([SUBMITTED, SUBMITTED], "job submitted of job 1 at 3 s: waiting -> waiting is illegal: it was submit"),
        ([CHOSEN], "job running of job 1 at 2 s: coming -> running is illegal: expected an active job that was never"),
        ([SUBMITTED, intent("save")], "intent save 1 of job 1 at 3 s: waiting -> saving is illegal: expected a job"),
        ([SUBMITTED, outcome("start")], "outcome start 1 of job 1 at 3 s: waiting -> running is illegal: expected the"),
        (
            [*STARTED[2:5], intent("start", 2)],
            r"intent start 2 of job 1 at 5 s: starting \(start 1 under way\) -> starting is illegal: another",
        ),
        ([*STARTED[2:], job("done")], "job done of job 1 at 6 s: running -> done is illegal: expected a job without"),
        ([SUBMITTED, job("again")], "job again of job 1 at 3 s: waiting -> waiting is illegal: expected a with"),
        ([SUBMITTED, {"kind": "cleared", "job": 1}], "cleared of job 1 at 3 s: waiting -> cleared is illegal"),
        ([{**SUBMITTED, "job": 1}, {"kind": "cleared", "job": 9}], "cleared of job 9 at 3 s: unknown -> cleared is"),
        ([*STARTED[2:], intent("cap", 2, (0,))], "intent cap 2 of job 1 at 6 s: .* expected a node for each of its 2"),
        (
            [SUBMITTED, {"kind": "rescheduling", "job": 1, "reason": "preemption"}],
            "rescheduling of job 1 at 3 s: waiting -> complete is illegal: no preemption or migration of it is open",
        ),
        ([{"kind": "decision", "view": {"job_id": [1], "tasks": [2]}}], "decision of job 1 at 2 s: coming -> decided"),
        (
            [SUBMITTED, {"kind": "decision", "view": {"job_id": [1], "tasks": [2]}}],
            "decision at 3 s: seen -> decided is illegal: its columns differ in length",
        ),
        ([order("pause"), order("pause")], "order pause at 3 s: paused -> pause is illegal: expected a run that"),
        ([order("continue")], "order continue at 2 s: running -> continue is illegal: expected a run that is paused"),
        ([order("stop"), order("continue")], "order continue at 3 s: stopping -> continue is illegal"),
        ([order("fly")], "order fly at 2 s: running -> fly is illegal: expected one of pause, continue, stop, drain"),
        ([order("drain", "c")], "drain at 2 s: node c -> drain is illegal: expected one of the nodes a, b"),
        ([GOES_ON], "clock-started at 101 s: running -> running is illegal: expected a run that is continued"),
        ([{"kind": "teardown"}, order("pause")], "order pause at 3 s: ended -> pause is illegal"),
    ],
)  # fmt: skip
def test_an_illegal_event_is_named_with_its_job_and_both_states(entries: list[dict[str, Any]], message: str) -> None:
    before = history(BEGIN, REPLAY, *entries[:-1])
    same = copy.deepcopy(before)
    with pytest.raises(IllegalEventError, match=message) as found:
        before.apply(event({"t_s": float(len(entries) + 1), **entries[-1]}))
    assert "\n" not in str(found.value)
    assert before == same, "an illegal entry changes nothing"


def test_a_node_that_goes_away_before_the_replay_keeps_its_number_and_its_state() -> None:
    lost = {"kind": "node", "node": "b", "standing": "lost", "online": False, "reason": "silent"}
    found = history(BEGIN, lost, REPLAY)
    assert [(node.name, node.available) for node in found.nodes] == [("a", True), ("b", False)]
    assert [node.name for node in history(BEGIN, REPLAY, {**lost, "node": "c"}).nodes] == ["a", "b", "c"]


def test_jobs_in_the_system_are_in_order_of_submission() -> None:
    assert history(BEGIN, REPLAY).active == {}
    two = [BEGIN, REPLAY, {**SUBMITTED, "job": 7}, SUBMITTED]
    assert list(history(*two).active) == [7, 1]
    assert list(history(*two, {**SUBMITTED, "job": 7, "state": "failed"}).active) == [1]
    found = history(*two)
    assert found.job_of(event(job("running"))) is found.jobs[1]
    assert found.job_of(event(BEGIN)) is None


def test_tasks_are_ready_when_they_progress_or_are_started() -> None:
    def unready(*entries: dict[str, Any]) -> set[int]:
        return history(*entries).jobs[1].unready

    assert unready(*STARTED[:5]) == {0, 1}
    assert unready(*STARTED[:5], guest("progress", 0, 0)) == {1}
    assert unready(*STARTED[:5], guest("progress", 0, 0), {"kind": "retry", "job": 1}) == {0, 1}
    assert unready(*STARTED) == set()
    restored = [*SAVED, intent("restore", 3), outcome("restore", 3)]
    assert unready(*restored) == {0, 1}
    assert unready(*restored, guest("progress", 1, 1)) == {0}
    assert unready(*restored, {"kind": "retry", "job": 1}) == {0, 1}


def test_accounts_that_nothing_refers_to_can_be_forgotten() -> None:
    entries = list(SAVED)
    for number in range(3, 9, 2):
        entries += [intent("restore", number), outcome("restore", number)]
        entries += [{"kind": "rescheduling", "job": 1, "reason": "preemption"}]
        entries += [intent("save", number + 1), outcome("save", number + 1, reason="preemption")]
    found = history(*entries).jobs[1]
    assert found.preemptions == 4
    found.forget_accounts()
    assert len(found.interruptions) == 1
    assert found.present is found.interruptions[0]
    assert found.been_last() == (0, 1)


def test_a_journal_that_contradicts_itself_is_refused_in_one_line(tmp_path: Path) -> None:
    path, seen = tmp_path / "events.jsonl", []
    lines = [encode(event({"t_s": float(number), **entry})) for number, entry in enumerate([*STARTED, job("done")])]
    path.write_bytes(b"\n".join(lines[:-1]) + b"\n")
    found = read_history(path, (), lambda told, state: seen.append((kind_of(told), state.last_s)))
    assert found == history(*STARTED)
    assert seen == [(entry["kind"], float(number)) for number, entry in enumerate(STARTED)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(
        UserError, match=r"events\.jsonl:7: job done of job 1 at 6 s: running -> done is illegal"
    ) as error:
        read_history(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", RUNS)
def test_journals_of_older_versions_fold_to_what_their_runs_ended_with(name: str, tmp_path: Path) -> None:
    run = unpack(name, tmp_path)
    names = tuple(map(str, read_json(run / "manifest.json")["nodes"]))
    found = fold(read_events(run / "events.jsonl"), names)
    assert [node.name for node in found.nodes] == list(names)
    facts = read_facts(run)
    assert {job.job_id: job.state for job in facts.jobs} == {job.job: job.state for job in found.jobs.values()}
    assert [(job.preemptions, job.migrations) for job in facts.jobs] == [
        (found.jobs[job.job_id].preemptions, found.jobs[job.job_id].migrations) for job in facts.jobs
    ]
