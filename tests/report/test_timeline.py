"""Timelines: spans are valid for any journal; those of whole runs add up to the measured values."""

from __future__ import annotations

import asyncio
import csv
import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.control.rehearsal import BEST, five_jobs, rehearse
from support.entries import event
from support.timelines import read_timeline

from node_agent.drivers.null import NullDriver
from testbed.errors import UserError
from testbed.run.history import History
from testbed.run.phases import COURSES, IllegalEventError, Phase
from testbed.scheduling.workload.jobs import Job
from testbed.study.report.run.lanes import GONE, with_gaps
from testbed.study.report.run.schedule import LIVE, PENALTIES, RESTORE, RUN, RUNS, SAVE, START, TRANSFER, WAIT, Span
from testbed.study.report.run.timeline import Timeline, doings

SCALE = 60.0


def tasks_of(spans: Iterable[Span]) -> dict[tuple[int, int], list[Span]]:
    out: dict[tuple[int, int], list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.begin_s):
        out[span.job, span.task].append(span)
    return out


def assert_sound(timeline: Timeline) -> None:
    assert all(span.end_s is not None for span in timeline.closed)
    assert len({(span.job, span.task) for span in timeline.open}) == len(timeline.open)
    assert all(span.end_s is None for span in timeline.open)
    for own in tasks_of(timeline.until_now()).values():
        last_s = 0.0
        for span in own:
            assert last_s <= span.begin_s < span.end_s <= timeline.now_s
            last_s = span.end_s
    assert timeline.nodes > max((span.node for span in timeline.spans), default=-1)


class Followed:
    """A timeline with the history that it listens to."""

    def __init__(self) -> None:
        self.history = History(("a", "b"))
        self.timeline = Timeline(SCALE, ("a", "b"))

    def feed(self, entry: dict) -> None:
        told = event(entry)
        self.history.apply(told)
        self.timeline.take(told, self.history)


def replay(entries: Iterable[dict]) -> Timeline:
    followed = Followed()
    for entry in entries:
        followed.feed(entry)
    return followed.timeline


TASKS = {1: 1, 2: 2, 3: 3}  # by job


def decision(wanted: dict[int, tuple[list[int], float]], submit_s: float = 1.0) -> tuple[str, dict]:
    """A decision about jobs of `TASKS`: their nodes (none for a job that must wait), and their yields."""
    count = len(wanted)
    view = {
        "job_id": list(wanted), "tasks": [TASKS[job] for job in wanted], "submit_time_s": [submit_s * SCALE] * count,
        "cpu_need_frac": [1.0] * count, "mem_req_frac": [0.3] * count, "virtual_time_s": [0.0] * count,
    }  # fmt: skip
    nodes = [node for job, (own, _) in wanted.items() for node in own or [-1] * TASKS[job]]
    chosen = {"task_node": nodes, "yield_frac": [share for _, share in wanted.values()]}
    return "decision", {"view": view, "decision": chosen}


@st.composite
def entries(draw: st.DrawFn) -> dict:
    """An entry with all keys of its kind; it may or may not fit the earlier entries."""
    job = draw(st.sampled_from(list(TASKS)))
    task = draw(st.integers(0, TASKS[job] - 1))
    nodes = draw(st.lists(st.integers(0, 2), min_size=TASKS[job], max_size=TASKS[job]))
    verb = draw(st.sampled_from(["start", "cap", "save", "transfer", "restore", "migrate"]))
    share = draw(st.sampled_from([0.25, 0.5, 1.0]))
    return draw(
        st.sampled_from([
            {"kind": "intent", "action": 1, "verb": verb, "job": job, "nodes": nodes, "yield_frac": share},
            {"kind": "outcome", "action": 1, "verb": verb, "job": job, "nodes": nodes, "ok": draw(st.booleans())},
            {"kind": "guest", "job": job, "task": task, "node": nodes[0], "event": "progress", "detail": {}},
            {"kind": "guest", "job": job, "task": task, "node": nodes[0], "event": "done", "detail": {}},
            {"kind": "guest", "job": job, "task": task, "node": nodes[0], "event": "failed", "detail": {}},
            {"kind": "job", "job": job, "state": draw(st.sampled_from(["submitted", "running", "moving"]))},
            {"kind": "job", "job": job, "state": draw(st.sampled_from(["paused", "resumed", "paused", "strange"]))},
            {"kind": "job", "job": job, "state": draw(st.sampled_from(["done", "failed"]))},
            {"kind": "job", "job": job, "state": draw(st.sampled_from(["withdrawn", "again"]))},
            {"kind": "migration", "job": job, "task": task, "source": 0, "target": nodes[-1], "downtime_s": 0.1},
            {"kind": "migration", "job": job, "task": task, "source": 0, "target": 1, "error": "no"},
            {"kind": "rescheduling", "job": job, "reason": "preemption", "penalty_s": 1.0},
            {"kind": "retry", "job": job, "action": 1, "attempt": 1, "error": "x"},
            {"kind": "replay", "jobs": 3, "trace_s": 0.0},
            {"kind": draw(st.sampled_from(["teardown", "aborted", "of a later version"]))},
        ])
    )  # fmt: skip


@st.composite
def fitting_entries(draw: st.DrawFn, history: History) -> dict:
    """An entry that a controller could write next: about a job in its current state, or a decision about all jobs."""
    job = draw(st.sampled_from(list(TASKS)))
    now, count = history.jobs.get(job), TASKS[job]
    nodes = draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    if now is None:
        return {"kind": "job", "job": job, "state": "submitted"}
    if draw(st.integers(0, 3)) == 0:
        chosen = {each: (draw(st.sampled_from([[], [0] * TASKS[each]])), 0.5) for each in history.active}
        kind, entry = decision(chosen)
        return {"kind": kind, **entry}
    flight = now.flight
    if flight is None:
        verbs = [verb for verb, course in COURSES.items() if course.before is now.phase]
        verb = draw(st.sampled_from(verbs or ["start"]))
        return {"kind": "intent", "action": 1, "verb": verb, "job": job, "nodes": nodes, "yield_frac": 0.25}
    task = draw(st.integers(0, count - 1))
    node = draw(st.sampled_from(sorted(now.places(task)) or [0]))
    return draw(
        st.sampled_from([
            {"kind": "outcome", "action": 1, "verb": flight.verb, "job": job, "nodes": flight.nodes, "ok": True},
            {"kind": "outcome", "action": 1, "verb": flight.verb, "job": job, "nodes": flight.nodes, "ok": False},
            {"kind": "guest", "job": job, "task": task, "node": node, "event": "progress", "detail": {}},
            {"kind": "migration", "job": job, "task": task, "source": 0, "target": flight.nodes[task]},
        ])
    )  # fmt: skip


@settings(max_examples=60)
@given(st.data())
def test_spans_are_sound_whatever_comes(data: st.DataObject) -> None:
    followed = Followed()
    timeline, history = followed.timeline, followed.history
    followed.feed({"t_s": 10.0, "kind": "replay", "trace_s": 0.0, "jobs": 3})
    t_s, now_s = 10.0, 0.0
    for _ in range(data.draw(st.integers(0, 60))):
        fits = data.draw(st.integers(0, 4)) > 0
        entry = data.draw(fitting_entries(history) if fits else entries())
        t_s = max(10.0, t_s + data.draw(st.sampled_from([0.0, 0.1, 1.0, 1.0, -0.5])))
        before = timeline.spans, timeline.jobs, timeline.now_s
        try:
            followed.feed({"t_s": t_s, **entry})
        except IllegalEventError:
            assert before == (timeline.spans, timeline.jobs, timeline.now_s), "an illegal entry changes nothing"
            continue
        assert_sound(timeline)
        assert timeline.now_s >= now_s
        now_s = timeline.now_s
        lasting = {(span.job, span.task): (span.node, span.kind, span.yield_frac) for span in timeline.open}
        assert not any(timeline.jobs[job].state in {"done", "failed"} for job, _ in lasting)
        if not timeline.ended and entry["kind"] not in {"decision", "replay"}:
            own = entry.get("job")
            doing = {} if own not in history.jobs else {each[:1]: each[1:] for each in doings(history.jobs[own])}
            assert {key[1:]: value for key, value in lasting.items() if key[0] == own} == doing
    assert set(timeline.jobs) == {job.job for job in history.jobs.values() if job.phase is not Phase.COMING}


def story(*steps: tuple[float, str, dict]) -> Timeline:
    before = [
        {"t_s": 0.1, "kind": "begin", "trace_s": 1e6},
        {"t_s": 2.0, "kind": "node", "trace_s": 1e6, "node": "b", "online": False},
        {"t_s": 10.0, "kind": "replay", "trace_s": 30.0},  # half a wall second after trace second 0
    ]
    return replay([*before, *({"t_s": 9.5 + at, "kind": kind, **more} for at, kind, more in steps)])


def intent(verb: str, nodes: list[int], yield_frac: float = 0.0) -> tuple[str, dict]:
    return "intent", {"verb": verb, "job": 2, "nodes": nodes, "yield_frac": yield_frac}


def outcome(verb: str, nodes: list[int], *, ok: bool = True) -> tuple[str, dict]:
    return "outcome", {"verb": verb, "job": 2, "nodes": nodes, "ok": ok, "error": None if ok else "x"}


def guest(event: str, task: int, node: int) -> tuple[str, dict]:
    return "guest", {"event": event, "job": 2, "task": task, "node": node, "detail": {}}


def told(state: str) -> tuple[str, dict]:
    return "job", {"job": 2, "state": state}


def brief(timeline: Timeline, task: int) -> list[tuple]:
    """Spans of a task of job 2 as (kind, node, begin, end, yield)."""
    own = tasks_of(timeline.until_now())[2, task]
    return [(s.kind, s.node, round(s.begin_s, 6), round(s.end_s, 6), s.yield_frac) for s in own]


def test_a_job_that_is_preempted_and_comes_back_on_another_node() -> None:
    timeline = story(
        (1, *told("submitted")), (1, *decision({2: ([0, 1], 1.0)})), (1, *told("running")),
        (1, *intent("start", [0, 1], 1.0)), (2, *guest("progress", 0, 0)), (3, *outcome("start", [0, 1])),
        (3.5, *guest("progress", 1, 1)), (4, *intent("cap", [0, 1], 0.5)), (5, *outcome("cap", [0, 1])),
        (6, *decision({2: ([], 0.0)})), (6, *told("paused")),
        (6, *intent("save", [0, 1])), (8, *outcome("save", [0, 1])),
        (10, *decision({2: ([0, 0], 0.25)})), (10, *told("resumed")),
        (11, *intent("transfer", [0, 0])), (13, *outcome("transfer", [0, 0])),
        (14, *intent("restore", [0, 0], 0.25)), (15, *guest("progress", 0, 0)), (16, *outcome("restore", [0, 0])),
        (16.5, *guest("progress", 1, 1)), (17, *guest("progress", 1, 0)),
        (18, *guest("done", 0, 0)), (19, *guest("done", 1, 0)), (19, *told("done")),
    )  # fmt: skip
    assert brief(timeline, 0) == [
        (START, 0, 1, 2, 1.0), (RUN, 0, 2, 5, 1.0), (RUN, 0, 5, 6, 0.5), (SAVE, 0, 6, 8, 0.0), (WAIT, 0, 10, 14, 0.0),
        (RESTORE, 0, 14, 15, 0.25), (RUN, 0, 15, 18, 0.25),
    ]  # fmt: skip
    assert brief(timeline, 1) == [
        (START, 1, 1, 3, 1.0), (RUN, 1, 3, 5, 1.0), (RUN, 1, 5, 6, 0.5), (SAVE, 1, 6, 8, 0.0), (WAIT, 1, 10, 11, 0.0),
        (TRANSFER, 0, 11, 13, 0.0), (WAIT, 0, 13, 14, 0.0), (RESTORE, 0, 14, 17, 0.25), (RUN, 0, 17, 19, 0.25),
    ]  # fmt: skip
    facts = timeline.jobs[2]
    assert (facts.state, facts.tasks, facts.preemptions, facts.migrations) == ("done", 2, 1, 0)
    assert (facts.submit_s, facts.start_s, facts.end_s) == pytest.approx((1, 1, 19))
    assert timeline.now_s * SCALE == pytest.approx(19 * SCALE)
    assert timeline.nodes == 2


def test_before_the_replay_there_are_no_jobs() -> None:
    followed = Followed()
    start = {"t_s": 2.0, "kind": "intent", "verb": "start", "job": 9, "nodes": [0], "yield_frac": 1.0}
    with pytest.raises(IllegalEventError, match="intent of job 9 at 2 s: unknown"):
        followed.feed(start)
    assert (followed.timeline.spans, followed.timeline.jobs) == ([], {})


def test_live_migration_runs_at_the_source_until_it_has_arrived() -> None:
    timeline = story(
        (1, *told("submitted")), (1, *told("running")),
        (1, *intent("start", [0, 1], 1.0)), (2, *outcome("start", [0, 1])), (4, *intent("migrate", [0, 2], 0.5)),
        (6, "migration", {"job": 2, "task": 1, "source": 1, "target": 2, "downtime_s": 0.1}),
        (6, *guest("progress", 1, 2)), (7, *outcome("migrate", [0, 2])), (9, *intent("migrate", [1, 2], 1.0)),
        (10, "migration", {"job": 2, "task": 0, "source": 0, "target": 1, "error": "no"}),
        (11, *outcome("migrate", [1, 2], ok=False)), (12, *intent("cap", [0, 2], 1.0)),
    )  # fmt: skip
    assert brief(timeline, 0) == [
        (START, 0, 1, 2, 1.0), (RUN, 0, 2, 7, 1.0), (RUN, 0, 7, 9, 0.5), (LIVE, 0, 9, 11, 0.5), (RUN, 0, 11, 12, 0.5),
    ]  # fmt: skip
    assert brief(timeline, 1) == [
        (START, 1, 1, 2, 1.0), (RUN, 1, 2, 4, 1.0), (LIVE, 1, 4, 6, 1.0), (RUN, 2, 6, 12, 0.5),
    ]  # fmt: skip
    assert timeline.jobs[2].migrations == 1
    assert {span.kind for span in timeline.open} == {RUN}, "a killed controller leaves them open"


def test_a_start_that_is_tried_again_and_fails_leaves_nothing_open() -> None:
    timeline = story(
        (1, *told("submitted")), (1, *told("running")),
        (1, *intent("start", [0, 1], 1.0)), (2, *guest("progress", 0, 0)),
        (3, "retry", {"job": 2, "action": 1, "attempt": 1, "error": "x"}), (5, *outcome("start", [0, 1], ok=False)),
        (5, *told("failed")), (7, "teardown", {}),
    )  # fmt: skip
    assert brief(timeline, 0) == [(START, 0, 1, 2, 1.0), (RUN, 0, 2, 3, 1.0), (START, 0, 3, 5, 1.0)]
    assert timeline.open == []
    assert timeline.ended


def test_a_job_that_was_withdrawn_does_nothing_until_it_is_run_again() -> None:
    timeline = story(
        (1, *told("submitted")), (1, *decision({2: ([0, 1], 1.0)})), (1, *told("running")),
        (1, *intent("start", [0, 1], 1.0)), (2, *outcome("start", [0, 1])), (3, *guest("done", 0, 0)),
        (4, *told("withdrawn")), (6, *told("again")), (7, *intent("start", [0, 0], 0.5)),
        (8, *outcome("start", [0, 0])), (9, "clock", {}),
    )  # fmt: skip
    again = [(START, 0, 7, 8, 0.5), (RUN, 0, 8, 9, 0.5)]
    assert brief(timeline, 0) == [(START, 0, 1, 2, 1.0), (RUN, 0, 2, 3, 1.0), *again]
    assert brief(timeline, 1) == [(START, 1, 1, 2, 1.0), (RUN, 1, 2, 4, 1.0), *again]


def movers() -> list[Job]:
    """Jobs that the periodic pass moves between two nodes while they run."""
    return [
        Job(1, 0, 1, 1.0, 0.3, 300),
        Job(2, 0, 1, 1.0, 0.3, 2400),
        Job(3, 10, 1, 1.0, 0.3, 300),
        Job(4, 10, 1, 1.0, 0.3, 2400),
        Job(5, 1000, 2, 1.0, 0.3, 1200),
    ]


@pytest.fixture
def slow_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saving takes 2 virtual seconds, starting 1, and restoring 3."""
    save, start, restore = NullDriver.save, NullDriver.start, NullDriver.restore

    async def slow_save(self: NullDriver, *args: object) -> object:
        await asyncio.sleep(2.0)
        return await save(self, *args)

    async def slow_start(self: NullDriver, *args: object) -> None:
        await asyncio.sleep(1.0)
        await start(self, *args)

    async def slow_restore(self: NullDriver, *args: object) -> None:
        await asyncio.sleep(3.0)
        await restore(self, *args)

    monkeypatch.setattr(NullDriver, "save", slow_save)
    monkeypatch.setattr(NullDriver, "start", slow_start)
    monkeypatch.setattr(NullDriver, "restore", slow_restore)


@pytest.mark.parametrize(
    ("policy", "extras"), [(BEST, ""), ("/per/OPT=MIN", ""), ("/per/OPT=MIN", "live"), ("EASY", "")]
)
@pytest.mark.usefixtures("slow_images")
def test_a_run_adds_up_to_its_results(tmp_path: Path, policy: str, extras: str) -> None:
    changes = {"extras": extras, "migration": {"mechanism": "live"}} if extras else {}
    jobs = movers() if extras else five_jobs()
    result, journal = rehearse(tmp_path, jobs, policy=policy, **changes)
    timeline = read_timeline(result.path)
    assert_sound(timeline)
    assert timeline.node_names == ("node-0", "node-1")
    assert timeline.ended
    assert timeline.open == []
    tasks = tasks_of(timeline.spans)
    seen = {span.kind for span in timeline.spans}
    assert {START, RUN} <= seen
    if policy != "EASY":
        assert {LIVE} <= seen if extras else {SAVE, RESTORE} <= seen
    gone = {job.job_id: 0.0 for job in jobs}
    for entry in journal:
        if entry["kind"] == "rescheduling":
            gone[entry["job"]] += entry["paused_s"]
    for row in csv.DictReader((result.path / "jobs.csv").read_text().splitlines()):
        job, facts = int(row["job_id"]), timeline.jobs[int(row["job_id"])]
        assert facts.state == "done"
        assert facts.tasks == int(row["tasks"])
        assert (facts.cpu_need_frac, facts.mem_req_frac) == (float(row["cpu_need_frac"]), float(row["mem_req_frac"]))
        assert facts.submit_s * SCALE == pytest.approx(float(row["submit_time_s"]))
        assert facts.start_s * SCALE == pytest.approx(float(row["start_time_s"]), abs=0.01)
        assert facts.end_s * SCALE == pytest.approx(float(row["end_time_s"]), abs=0.01)
        assert (facts.preemptions, facts.migrations) == (int(row["preemptions"]), int(row["migrations"]))
        assert facts.penalty_s == pytest.approx(float(row["penalty_s"]), abs=1e-5)
        for task in range(facts.tasks):
            own = tasks[job, task]
            worked_s = sum((s.end_s - s.begin_s) * s.yield_frac for s in own if s.kind in RUNS)
            # the pause of a guest at the end of a live migration is part of its span
            stood_still_s = 0.06 * sum(s.kind == LIVE for s in own)
            assert worked_s * SCALE == pytest.approx(float(row["virtual_time_s"]), abs=0.05 + stood_still_s * SCALE)
            held_up_s = sum(s.end_s - s.begin_s for s in own if s.kind in PENALTIES)
            if not extras:
                assert held_up_s == pytest.approx(facts.penalty_s, abs=1e-4)
            paused_s = sum(s.end_s - s.begin_s for s in with_gaps(own, timeline.now_s) if s.kind == GONE)
            assert paused_s == pytest.approx(gone[job], abs=1e-4)


@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.floats(0, 1))
@pytest.mark.usefixtures("slow_images")
def test_a_journal_that_stops_anywhere(tmp_path_factory: pytest.TempPathFactory, cut: float) -> None:
    result, journal = rehearse(tmp_path_factory.mktemp("run"), five_jobs())
    whole = {(s.job, s.task, s.begin_s): s for s in replay(journal).closed}
    text = (result.path / "events.jsonl").read_text()
    (result.path / "events.jsonl").write_text(text[: int(len(text) * cut)])
    if '"kind":"replay"' not in text[: int(len(text) * cut)]:
        assert read_timeline(result.path).spans == []
        return
    timeline = read_timeline(result.path)
    assert_sound(timeline)
    for span in timeline.until_now():
        full = whole[span.job, span.task, span.begin_s]
        assert (full.node, full.kind, full.yield_frac) == (span.node, span.kind, span.yield_frac)
        assert span.end_s == full.end_s or (span.end_s == timeline.now_s < full.end_s)


def test_the_timeline_of_a_broken_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"manifest\.json: cannot read"):
        read_timeline(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps({"clocks": {"time_scale": 2}, "nodes": {"a": {}}}))
    (tmp_path / "events.jsonl").write_text(
        '{"t_s":1,"kind":"replay","trace_s":0,"jobs":1}\n{"t_s":2,"kind":"intent","job":1}\n'
    )
    with pytest.raises(UserError, match=r"events\.jsonl:2: not an entry of a run's journal"):
        read_timeline(tmp_path)
    (tmp_path / "events.jsonl").write_text(
        '{"t_s":1,"trace_s":0,"kind":"replay","jobs":1}\n{"t_s":2,"trace_s":0,"kind":"job","job":1,"state":"done"}\n'
    )
    with pytest.raises(UserError, match=r"events\.jsonl:2: job of job 1 at 2 s: unknown -> job is illegal") as found:
        read_timeline(tmp_path)
    assert "\n" not in str(found.value)
