"""Whole runs in virtual time, for tests: the real controller and agents, and drivers that do nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from node_agent.drivers.null import NullDriver
from testbed.control.session import RunResult, run_session
from testbed.control.snapshot import Snapshot
from testbed.lab.bring_up import dry_lab
from testbed.lab.virtual_time import run_in_virtual_time
from testbed.measure.rundir import read_journal
from testbed.run.events import KINDS
from testbed.run.journal import plain, read_events
from testbed.scenario.schema import Scenario, check_scenario
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.workload.jobs import Job

BEST = "GreedyPM */per/OPT=MIN/MINVT=600"


class Watcher:
    """A display that records its lines and snapshots; `act` may interfere with the run at each snapshot."""

    def __init__(self, act: Callable[[Snapshot], None] = lambda _snapshot: None) -> None:
        self.lines: list[str] = []
        self.pictures: list[Snapshot] = []
        self._act = act

    def line(self, trace_s: float, text: str) -> None:
        self.lines.append(f"{trace_s:.1f} {text}")

    def show(self, snapshot: Snapshot) -> None:
        self.pictures.append(snapshot)
        self._act(snapshot)


def scenario(count: int = 2, **changes: object) -> Scenario:
    table: dict[str, object] = {
        "name": "rehearsal",
        "policy": BEST,
        "time_scale": 60,
        "workload": {},
        "nodes": [{"name": f"node-{index}", "memory_mib": 1000} for index in range(count)],
        **changes,
    }
    return check_scenario(table, Path("rehearsal.toml"))


def five_jobs() -> list[Job]:
    return [
        Job(1, 0, 1, 1.0, 0.4, 1200),
        Job(2, 60, 2, 1.0, 0.4, 900),
        Job(3, 120, 1, 1.0, 0.5, 1500),
        Job(4, 400, 2, 0.5, 0.5, 600),
        Job(5, 500, 1, 1.0, 0.3, 300),
    ]


def movers() -> list[Job]:
    """Jobs that the policy moves between two nodes while they run."""
    return [
        Job(1, 0, 1, 1.0, 0.3, 300),
        Job(2, 0, 1, 1.0, 0.3, 2400),
        Job(3, 10, 1, 1.0, 0.3, 300),
        Job(4, 20, 1, 1.0, 0.3, 2400),
        Job(5, 30, 2, 0.5, 0.2, 1500),
    ]


def rehearse(
    tmp_path: Path,
    jobs: Sequence[Job],
    *,
    count: int = 2,
    policy: str = BEST,
    watcher: Watcher | None = None,
    extras: str = "",
    **changes: object,
) -> tuple[RunResult, list[dict]]:
    """Run the jobs with null drivers that have `extras`; return the result and the journal."""
    chosen = scenario(count, **changes)
    watcher = watcher or Watcher()
    path = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
    main = run_session(chosen, parse(policy, chosen.period_s), jobs, path, dry_lab, watcher)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("node_agent.drivers.null.NullDriver", lambda *_extras: NullDriver(extras))
        result = run_in_virtual_time(main)
    journal = read_journal(path / "events.jsonl")
    assert [plain(event) for event in read_events(path / "events.jsonl")] == journal
    assert {entry["kind"] for entry in journal} <= KINDS.keys()
    failed = [entry for entry in journal if entry["kind"] == "job" and entry["state"] == "failed"]
    assert {str(entry["job"]): entry["code"] for entry in failed} == result.summary["failure_codes"]
    return result, journal
