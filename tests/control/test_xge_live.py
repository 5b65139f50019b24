"""The scenario of XGE on real processes: lent nodes are taken back, and suspended serial jobs continue."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import pytest
from support.control.live_run import Run
from support.control.live_run import start as start  # noqa: PLC0414  # the fixture
from support.deadlines import PATIENT_TOML
from support.ordered import of_kind
from support.timelines import read_timeline

from testbed.control.replay_decisions import replay_decisions
from testbed.measure.rundir import read_journal
from testbed.scheduling.workload.table import read_table
from testbed.study.report.run.schedule import RUN, Span
from testbed.study.report.run.slots import slots_of

pytestmark = pytest.mark.slow

SCENARIOS = Path(__file__).parents[2] / "scenarios"
OURS = {0, 1}  # nodes of the parallel partition


def test_lent_nodes_are_taken_back_and_serial_jobs_go_on(start: Callable[..., Run], tmp_path: Path) -> None:
    text = (SCENARIOS / "xge.toml").read_text().replace("policy = ", 'on_controller_loss = "remove"\npolicy = ', 1)
    text = text.replace("cpus = 0.45", "cpus = 0.1")  # leaves CPU time to the tests beside it
    (tmp_path / "xge.toml").write_text(text + PATIENT_TOML)
    (tmp_path / "xge.csv").write_bytes((SCENARIOS / "xge.csv").read_bytes())
    jobs = {job.job_id: job for job in read_table(SCENARIOS / "xge.csv")}
    parallel = {job for job, each in jobs.items() if each.tasks > 1}

    run = start("", "--time-scale", "60", command=("testbed", "run", "xge.toml"))
    assert run.end() == 0, run.lines
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["results"] == {"right": len(jobs), "wrong": {}, "unchecked": {}}
    assert replay_decisions(run.path)[1] == []

    journal = read_journal(run.path / "events.jsonl")
    states = {state: [each["job"] for each in of_kind(journal, "job") if each["state"] == state]
              for state in ("paused", "resumed", "done")}  # fmt: skip
    assert states["paused"]
    assert not parallel & set(states["paused"]), "a parallel job is never paused"
    ended = Counter(states["paused"]) - Counter(states["resumed"])  # jobs whose work was over before they were saved
    assert all(times == 1 and not saved_in_the_end(journal, job) for job, times in ended.items())
    assert Counter(states["resumed"]) + ended == Counter(states["paused"])
    assert sorted(states["done"]) == sorted(jobs)
    assert any(taken_back(journal, job) for job in parallel if not jobs[job].urgent)

    schedule = read_timeline(run.path).schedule()
    kinds: tuple[list[Span], list[Span]] = ([], [])
    for span in schedule.spans:
        if span.kind == RUN:
            kinds[span.job in parallel].append(span)
    assert not [pair for pair in product(*kinds) if overlap(*pair)], "one slot of a node is active at a time"
    slots = slots_of(schedule)
    assert slots is not None
    assert slots.total.taken_back
    assert 0 <= slots.total.suspended - slots.total.resumed <= len(ended)


def saved_in_the_end(journal: Sequence[dict], job: int) -> bool:
    """Whether a job was saved after the last decision that paused it."""
    last = max(at for at, each in enumerate(journal) if (each["kind"], each.get("state"), each.get("job"))
               == ("job", "paused", job))  # fmt: skip
    return ("outcome", "save", job, True) in [
        (each["kind"], each.get("verb"), each.get("job"), each.get("ok")) for each in journal[last:]
    ]


def taken_back(journal: Sequence[dict], job: int) -> bool:
    """Whether serial jobs were saved on nodes of the parallel partition before a parallel job started there."""
    begun = next(at for at, each in enumerate(journal) if (each["kind"], each.get("verb"), each.get("job"))
                 == ("intent", "start", job))  # fmt: skip
    saved = {
        node
        for each in journal[:begun]
        if (each["kind"], each.get("verb"), each.get("ok")) == ("outcome", "save", True)
        for node in each["nodes"]
    }
    return bool(OURS & saved & set(journal[begun]["nodes"]))


def overlap(one: Span, other: Span) -> bool:
    if one.node != other.node or one.end_s is None or other.end_s is None:
        return False
    return one.begin_s < other.end_s and other.begin_s < one.end_s
