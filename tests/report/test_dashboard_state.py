"""The state of the page for a run: independent of how its files grew, and correct."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.entries import event, whole
from support.report.rehearsed_run import rehearse
from support.timelines import read_timeline

from testbed.measure.points import to_line
from testbed.run.history import History, fold
from testbed.run.newest import newest_run
from testbed.study.report.browser.changes import Page
from testbed.study.report.browser.follow import RunFeed
from testbed.study.report.browser.jobs import board_of
from testbed.study.report.browser.state import RunState
from testbed.study.report.browser.telemetry import Telemetry


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rehearse(tmp_path_factory.mktemp("runs") / "2026-11-21T10-00-00-quickstart")


class Browser:
    """A small model of the state that the page's script keeps."""

    def __init__(self) -> None:
        self.parts: dict[str, Any] = {}
        self.nodes: dict[str, Any] = {}
        self.closed: list[Any] = []
        self.open: dict[tuple[int, int], Any] = {}
        self.log: list[Any] = []

    def take(self, changes: Mapping[str, Any]) -> None:
        for name in ("head", "queue", "actions", "reschedulings", "now_s"):
            if name in changes:
                self.parts[name] = changes[name]
        self.nodes.update(changes.get("nodes", {}))
        self.closed += changes.get("closed", [])
        for key in changes.get("gone", []):
            del self.open[tuple(key)]
        self.open.update({(row[0], row[1]): row for row in changes.get("open", [])})
        self.log += changes.get("log", [])

    def page(self) -> dict[str, Any]:
        return {
            **self.parts,
            "nodes": self.nodes,
            "closed": self.closed,
            "open": sorted(self.open.values(), key=str),
            "log": self.log[-200:],
        }


def follow_all(path: Path) -> Page:
    feed = RunFeed(path)
    while feed.feed(feed.files.read()):
        pass
    feed.page.update()
    return feed.page


def shown(page: Page) -> dict[str, Any]:
    return {name: value for name, value in page.snapshot().items() if name != "kept_spans"}


@settings(max_examples=12)
@given(st.data())
def test_a_run_that_grows_in_any_pieces_is_shown_as_one_that_is_read_at_once(
    run: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    growing = tmp_path_factory.mktemp("growing") / run.name
    growing.mkdir()
    feed, browser = RunFeed(growing), Browser()
    journal, points = (run / "events.jsonl").read_bytes(), (run / "points.lp").read_bytes()
    cuts = data.draw(st.lists(st.floats(0, 1), min_size=1, max_size=12).map(sorted))
    cut_points = data.draw(st.integers(0, len(points)))
    sent = {"events.jsonl": 0, "points.lp": 0}
    for share in [*cuts, 1.0]:
        journal_to = int(share * len(journal))
        points_to = len(points) if share == 1.0 else min(cut_points, int(share * len(points)))
        if journal[:journal_to].count(b"\n") > 2:  # the manifest exists before the replay begins
            (growing / "manifest.json").write_bytes((run / "manifest.json").read_bytes())
        for name, content, to in (("events.jsonl", journal, journal_to), ("points.lp", points, points_to)):
            with (growing / name).open("ab") as file:
                file.write(content[sent[name] : to])
            sent[name] = max(sent[name], to)
        while feed.feed(feed.files.read()):
            pass
        browser.take(feed.page.update())
        assert browser.page() == shown(feed.page)
    at_once = shown(follow_all(run))
    assert browser.page() == at_once
    assert at_once["head"]["state"] == "finished"


def test_the_page_of_a_whole_run_says_what_its_results_say(run: Path) -> None:
    page = shown(follow_all(run))
    summary = json.loads((run / "summary.json").read_text())
    manifest = json.loads((run / "manifest.json").read_text())
    assert page["queue"]["counts"] == {
        "coming": 0, "waiting": 0, "running": 0, "paused": 0, "done": summary["done"], "failed": 0,
    }  # fmt: skip
    metrics = {name: metric["value"] for name, metric in summary["metrics"].items()}
    assert page["reschedulings"]["penalty_s"] == pytest.approx(metrics["penalty_total"], abs=1e-4)
    assert sum(page["reschedulings"]["phases"]) == pytest.approx(metrics["penalty_total"], abs=1e-4)
    assert page["reschedulings"]["counts"].get("preemption", 0) == metrics["preemptions"] > 0
    assert page["head"]["names"] == list(manifest["nodes"])
    assert page["head"]["zero_unix_ms"] == pytest.approx(
        manifest["clocks"]["anchor_unix_ns"] / 1e6 + manifest["clocks"]["replay_begin_s"] * 1e3, abs=50
    )
    assert page["open"] == []
    assert page["actions"] == {"count": 0, "rows": []}
    assert all(node["guests"] == [] and node["held_mib"] == 0 for node in page["nodes"].values())
    spans = [row[:5] for row in page["closed"]]
    whole = [
        [span.job, span.task, span.node, round(span.begin_s, 3), round(span.end_s or 0, 3)]
        for span in read_timeline(run).closed
    ]
    assert spans == whole


def test_in_the_middle_of_a_run_nodes_hold_what_the_decisions_gave(run: Path, tmp_path: Path) -> None:
    lines = (run / "events.jsonl").read_bytes().splitlines(keepends=True)
    state = RunState("x")
    state.feed_manifest(json.loads((run / "manifest.json").read_text()))
    state.feed_points((run / "points.lp").read_bytes().splitlines())
    page = Page(state)
    checked = 0
    for line, following in zip(lines, [*lines[1:], b'{"kind":""}'], strict=True):
        state.feed_line(line)
        entry = json.loads(line)
        quiet = not state.history.flights and json.loads(following)["kind"] == "decision"
        if not quiet or entry["kind"] == "decision":
            continue
        page.update()
        view = json.loads(following)["view"]
        at, expected = 0, dict.fromkeys(range(2), 0.0)
        caps = {job: live.yield_frac for job, live in state.history.active.items()}
        for job, tasks, mem, need in zip(
            view["job_id"], view["tasks"], view["mem_req_frac"], view["cpu_need_frac"], strict=True
        ):
            for node in view["task_node"][at : at + tasks]:
                if node >= 0 and state.history.active[job].cpu_need_frac:
                    expected[node] += mem * state.memory_mib[node]
                    assert 0 < caps[job] <= 1
                    rows = [row for row in state.guests(node) if row[0] == job]
                    assert rows
                    assert rows[0][2] == pytest.approx(caps[job] * need * state.cpus[node], abs=1e-3)
            at += tasks
        for node, held_mib in expected.items():
            assert page.snapshot()["nodes"][str(node)]["held_mib"] == pytest.approx(held_mib, abs=0.2)
        checked += 1
    assert checked >= 10


def test_guests_that_compete_by_shares_have_their_share_and_their_bank() -> None:
    telemetry = Telemetry()
    tags = {"node": "node-a", "job": "7", "task": "0"}
    fields = {"cap_cores": 1.0, "cpu_s": 1.0, "rss_mib": 1.0, "read_mib": 0.0, "written_mib": 0.0, "units_done": 3}
    telemetry.feed(to_line("guest", tags, fields, 10**9).encode())
    guest = telemetry.by_node["node-a"].guests[7, 0]
    assert (telemetry.has_shares, guest.share_cores, guest.bank_cores) == (False, None, None)
    telemetry.feed(to_line("guest", tags, {**fields, "share_cores": 0.25, "bank_cores": 0.5}, 2 * 10**9).encode())
    guest = telemetry.by_node["node-a"].guests[7, 0]
    assert (telemetry.has_shares, guest.share_cores, guest.bank_cores) == (True, 0.25, 0.5)


def test_a_page_of_a_run_with_shares_shows_them(run: Path) -> None:
    """Shares replace the caps that a policy requests; a page without shares is as before."""
    state = RunState("run")
    state.feed_manifest(json.loads((run / "manifest.json").read_text()))
    lines = (run / "events.jsonl").read_bytes().splitlines()
    for line in lines:
        state.feed_line(line)
        if guests := [(node, row) for node in range(2) for row in state.guests(node)]:
            break
    page = Page(state)
    page.update()
    node, (job, task, requested, *_) = guests[0]
    plain = page.snapshot()
    assert "shares" not in plain["head"]
    assert "banks" not in plain["nodes"][str(node)]
    tags = {"node": state.names[node], "job": str(job), "task": str(task)}
    fields = {"cpu_s": 1.0, "rss_mib": 1.0, "share_cores": requested / 4, "bank_cores": 0.125}
    gone = {**tags, "task": str(task + 50)}
    state.feed_points([to_line("guest", each, fields, 10**9).encode() for each in (tags, gone)])
    changed = page.update()
    assert changed["head"]["shares"] is True
    shown = changed["nodes"][str(node)]
    assert [row[2] for row in shown["guests"] if row[:2] == [job, task]] == [pytest.approx(requested / 4, abs=1e-4)]
    assert shown["banks"] == [[job, 0.125]], "missing guests are not shown"


def test_use_is_the_cpu_time_between_the_last_two_samples() -> None:
    telemetry = Telemetry()
    tags = {"run": "a b,c=d", "policy": "Greedy */per=1", "node": "rack 1,node=2", "job": "7", "task": "0"}
    fields = {"cap_cores": 0.5, "rss_mib": 10.0, "read_mib": 0.0, "written_mib": 0.0, "units_done": 3}

    def sample(cpu_s: float, time_ns: int) -> bytes:
        return to_line("guest", tags, {**fields, "cpu_s": cpu_s}, time_ns).encode()

    for cpu_s, time_ns in ((1.0, 10**9), (1.4, 2 * 10**9)):
        assert telemetry.feed(sample(cpu_s, time_ns)) == "rack 1,node=2"
    guest = telemetry.by_node["rack 1,node=2"].guests[7, 0]
    assert guest.used_cores == pytest.approx(0.4)
    del fields["cap_cores"]
    telemetry.feed(sample(1.9, 5 * 10**9 // 2))  # its cap could not be read, but its use is still known
    guest = telemetry.by_node["rack 1,node=2"].guests[7, 0]
    assert (guest.cap_cores, guest.used_cores) == (None, pytest.approx(1.0))
    telemetry.feed(sample(0.1, 3 * 10**9))  # the guest was restored, as another process
    assert telemetry.by_node["rack 1,node=2"].guests[7, 0].used_cores is None
    node = {
        "cpu_frac": 0.5, "memory_used_mib": 9.0, "disk_read_mib": 0.0, "disk_written_mib": 0.0,
        "net_received_mib": 0.0, "net_sent_mib": 0.0, "agent_cpu_s": 0.0, "agent_rss_mib": 0.0,
    }  # fmt: skip
    telemetry.feed(to_line("node", {"node": tags["node"]}, node, 9 * 10**9).encode())
    assert telemetry.by_node["rack 1,node=2"].guests == {}  # no sample for six seconds
    assert telemetry.feed(b'job,job=1 state="running",trace_s=1.0 5') is None
    assert telemetry.feed(b"node,node=a cpu_frac=half 5") is None


def test_the_newest_run_is_the_one_that_began_last(tmp_path: Path) -> None:
    assert newest_run(tmp_path / "none") is None
    assert newest_run(tmp_path) is None
    names = ["2026-01-01T00-00-00-b", "2026-01-02T00-00-00-a", "2026-01-02T00-00-00-a-2", "2026-01-02T00-00-00-a-10"]
    for name in names:
        (tmp_path / name).mkdir()
        assert newest_run(tmp_path) != tmp_path / name  # no journal yet
        (tmp_path / name / "events.jsonl").touch()
        assert newest_run(tmp_path) == tmp_path / name
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "events.jsonl").touch()
    assert newest_run(tmp_path) == tmp_path / names[-1]


def test_memory_stays_bounded_in_a_long_run(monkeypatch: pytest.MonkeyPatch) -> None:
    state = RunState("x")
    state.closed = type(state.closed)(maxlen=50)
    page = Page(state)
    state.feed_line(b'{"t_s":1,"kind":"replay","trace_s":0,"jobs":500}')
    for job in range(500):
        guest = {"job": job, "task": 0, "node": 0, "event": "done"}
        entries: tuple[dict[str, Any], ...] = (
            {"kind": "job", "job": job, "state": "submitted"},
            {"kind": "intent", "action": job, "verb": "start", "job": job, "nodes": [0], "yield_frac": 1.0},
            {"kind": "outcome", "action": job, "verb": "start", "job": job, "nodes": [0], "ok": True},
            {"kind": "guest", **guest},
            {"kind": "job", "job": job, "state": "done"},
        )
        for second, entry in enumerate(entries):
            state.feed_line(json.dumps(whole({"t_s": 2 + 5 * job + second} | entry)).encode())
        if job % 100 == 99:
            assert len(page.update()["closed"]) == 50
    assert len(page.snapshot()["closed"]) == 50
    assert len(page.snapshot()["log"]) == 200
    assert state.history.active == {}
    assert state.timeline.closed == []
    assert page.snapshot()["queue"]["counts"]["done"] == 500


def test_a_job_that_is_preempted_again_and_again_takes_no_more_memory() -> None:
    state = RunState("x")
    number = 0

    def feed(kind: str, **entry: object) -> None:
        nonlocal number
        number += 1
        state.feed_line(json.dumps(whole({"t_s": number, "kind": kind, "job": 1, **entry})).encode())

    def operate(verb: str) -> None:
        feed("intent", verb=verb, nodes=[0], yield_frac=1.0)
        feed("outcome", verb=verb, nodes=[0], ok=True)

    feed("replay", jobs=1)
    feed("job", state="submitted")
    operate("start")
    for count in range(100):
        operate("save")
        operate("restore")
        feed("rescheduling", reason="preemption", penalty_s=1.0)
        assert len(state.history.jobs[1].interruptions) == 1
        assert state.reasons == {"preemption": count + 1}
    assert state.penalty_s == pytest.approx(100.0)
    assert state.history.jobs[1].been_last() == (0,)


def test_a_line_that_cannot_be_read_is_said_and_left_out() -> None:
    state = RunState("x")
    for line in (b"{", b"7", b'{"kind":"job"}', b'{"kind":"replay","t_s":0,"trace_s":0,"jobs":"many"}'):
        before = state.log_count
        state.feed_line(line)
        assert state.log_count > before, line
    state.feed_line(b'{"t_s":1,"kind":"of the future","trace_s":0}')
    assert "cannot be read" in state.log[0][3]


def test_a_line_that_contradicts_those_before_it_is_said_and_left_out(run: Path) -> None:
    lines = (run / "events.jsonl").read_bytes().splitlines()
    right, wrong = RunState("x"), RunState("x")
    for line in lines:
        right.feed_line(line)
        wrong.feed_line(line)
        if b'"state":"done"' in line:
            count = wrong.log_count
            wrong.feed_line(line)
            assert wrong.log_count == count + 1
            assert "contradicts earlier lines: job done of job" in wrong.log[-1][3]
    assert wrong.log_count > right.log_count
    assert (wrong.history, wrong.board, wrong.closed) == (right.history, right.board, right.closed)


def test_a_failed_operation_and_a_live_migration_hold_memory_where_they_should() -> None:
    history = History()

    def feed(kind: str, **entry: object) -> None:
        history.apply(event({"kind": kind, "job": 1, **entry}))

    def operation(number: int, verb: str, nodes: list[int], *, ok: bool | None = None) -> None:
        feed("intent", action=number, verb=verb, nodes=nodes, yield_frac=0.5)
        if ok is not None:
            feed("outcome", action=number, verb=verb, nodes=nodes, ok=ok)

    def tasks_on(node: int) -> list[int]:
        return [guest.task for guest in board_of(history).guests.get(node, ())]

    feed("job", state="submitted")
    operation(1, "start", [0, 0], ok=True)
    assert tasks_on(0) == [0, 1]
    operation(2, "migrate", [0, 1])
    assert (tasks_on(0), tasks_on(1)) == ([0, 1], [1])
    assert [(job, flight.verb) for job, flight in board_of(history).flights] == [(1, "migrate")]
    assert {guest.verb for guest in board_of(history).guests[1]} == {"migrate"}
    feed("outcome", action=2, verb="migrate", nodes=[0, 1], ok=False)
    assert (tasks_on(0), tasks_on(1)) == ([0, 1], [])
    operation(3, "migrate", [0, 1], ok=True)
    assert (tasks_on(0), tasks_on(1)) == ([0], [1])
    operation(4, "save", [0, 1], ok=True)
    assert board_of(history).guests == {}
    operation(5, "restore", [1, 1])
    assert {guest.yield_frac for guest in board_of(history).guests[1]} == {0.5}
    feed("outcome", action=5, verb="restore", nodes=[1, 1], ok=False)
    assert board_of(history).guests == {}
    feed("job", state="failed")
    assert board_of(history).counts["failed"] == 1


def test_a_result_that_is_found_wrong_later_counts_once() -> None:
    ended = {"job": 1, "task": 0, "node": 0}
    history = fold(
        event(entry)
        for entry in (
            {"kind": "replay", "jobs": 3},
            {"kind": "job", "job": 1, "state": "submitted"},
            {"kind": "intent", "verb": "start", "job": 1, "nodes": [0]},
            {"kind": "outcome", "verb": "start", "job": 1, "nodes": [0], "ok": True},
            {"kind": "guest", **ended, "event": "ended"},
            {"kind": "job", "job": 1, "state": "done"},
            {"kind": "guest", **ended, "event": "failed"},
            {"kind": "job", "job": 1, "state": "failed"},
        )
    )
    assert board_of(history).counts == {"coming": 2, "waiting": 0, "running": 0, "paused": 0, "done": 0, "failed": 1}


def test_eta_follows_the_work_that_is_done() -> None:
    history = History()
    assert board_of(history).eta_s(10.0) is None  # there is no data yet
    needs = {1: (2, 0.5, 100.0), 2: (1, 1.0, 300.0)}

    def feed(kind: str, **entry: object) -> None:
        history.apply(event({"kind": kind, **entry}))

    def decide(virtual_time_s: dict[int, float]) -> None:
        view = {
            "job_id": list(virtual_time_s),
            "tasks": [needs[job][0] for job in virtual_time_s],
            "cpu_need_frac": [needs[job][1] for job in virtual_time_s],
            "virtual_time_s": list(virtual_time_s.values()),
            **dict.fromkeys(("submit_time_s", "mem_req_frac"), [0.0] * len(virtual_time_s)),
        }
        places = [-1] * sum(view["tasks"])
        feed("decision", view=view, decision={"task_node": places, "yield_frac": [0.0] * len(virtual_time_s)})

    trace = [
        {"job": job, "tasks": tasks, "cpu_need_frac": need, "run_time_s": run_time_s}
        for job, (tasks, need, run_time_s) in needs.items()
    ]
    feed("replay", jobs=2, trace=trace)
    for job in needs:
        feed("job", job=job, state="submitted")
    decide({1: 50.0, 2: 0.0})
    assert board_of(history).done_frac == pytest.approx(50 / 400)
    assert board_of(history).eta_s(10.0) == pytest.approx(70.0)
    feed("intent", verb="start", job=1, nodes=[0, 0])
    feed("outcome", verb="start", job=1, nodes=[0, 0], ok=True)
    for task in (0, 1):
        feed("guest", job=1, task=task, node=0, event="done")
    feed("job", job=1, state="done")
    decide({2: 150.0})
    assert board_of(history).eta_s(50.0) == pytest.approx(30.0)  # 250 of 400 took 50 s


def test_a_run_tells_its_work_until_all_is_done(run):
    state = RunState("x")
    fracs = []
    for line in (run / "events.jsonl").read_bytes().splitlines():
        state.feed_line(line)
        fracs.append(state.board.done_frac)
    assert fracs[-1] == pytest.approx(1.0)
    assert fracs == sorted(fracs)
    assert len({round(frac, 2) for frac in fracs}) > 5
    assert state.eta_s() is None  # the run has ended
