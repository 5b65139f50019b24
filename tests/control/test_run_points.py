"""The points of a whole run: every kind is written, fits the schema, and agrees with the journal."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.control.rehearsal import Watcher, rehearse

from testbed.measure.points import PointError
from testbed.measure.schema import MEASUREMENTS
from testbed.measure.spool import read_lines
from testbed.scheduling.workload.jobs import Job

JOBS = [
    Job(1, 0, 1, 1.0, 0.4, 1200),
    Job(2, 60, 2, 1.0, 0.4, 900),
    Job(3, 120, 1, 1.0, 0.5, 1500),
    Job(4, 400, 2, 0.5, 0.5, 600),
    Job(5, 500, 1, 1.0, 0.3, 300),
]


def points(run: Path) -> dict[str, list[tuple[dict[str, str], dict[str, str]]]]:
    """Tags and fields of all points, by measurement; the values here need no escaping."""
    found: dict[str, list[tuple[dict[str, str], dict[str, str]]]] = {}
    for line, _ in read_lines(run):
        head, fields, _stamp = line.replace("\\ ", "_").replace("\\=", "_").replace("\\,", "_").rsplit(" ", 2)
        name, *tags = head.split(",")
        pairs = (dict(item.split("=", 1) for item in items) for items in (tags, fields.split(",")))
        found.setdefault(name, []).append(tuple(pairs))  # type: ignore[arg-type]  # each element is a pair
    return found


def test_points_say_what_the_journal_says(tmp_path: Path) -> None:
    result, journal = rehearse(tmp_path, JOBS)
    found = points(result.path)
    assert result.summary["points_refused"] == {}
    assert set(found) >= {
        "run", "calibration", "node", "guest", "job", "decision", "action", "action_phase", "rescheduling",
    }  # fmt: skip
    assert set(found) <= set(MEASUREMENTS)

    assert [tags["stage"] for tags, _ in found["run"]] == ["prepare", "replay", "teardown"]
    stretches = {int(tags["job"]): float(fields["stretch"]) for tags, fields in found["job"] if "stretch" in fields}
    assert set(stretches) == {1, 2, 3, 4, 5}
    assert max(stretches.values()) == pytest.approx(result.summary["metrics"]["max_stretch"]["value"], abs=1e-6)
    ends = [fields for _, fields in found["job"] if fields["state"] == '"done"']
    assert sum(int(fields["preemptions"][:-1]) for fields in ends) == result.summary["metrics"]["preemptions"]["value"]

    outcomes = [entry for entry in journal if entry["kind"] == "outcome"]
    assert len(found["action"]) == len(outcomes)
    phases = [
        (str(entry["job"]), entry["verb"], name)
        for entry in outcomes
        for name in ("hold", "run_on", "write", "sync", "hold_skew")
        if f"{name}_s" in entry
    ]
    assert phases
    assert sorted(phases) == sorted((tags["job"], tags["verb"], tags["phase"]) for tags, _ in found["action_phase"])
    costs = [entry for entry in journal if entry["kind"] == "rescheduling"]
    assert len(costs) == len(found["rescheduling"]) > 0
    for cost, (_, fields) in zip(costs, found["rescheduling"], strict=True):
        assert ("transfer_mib_per_s" in fields) == (cost["transferred_bytes"] > 0 and cost["transfer_s"] > 0)
        if "save_mib_per_s" in fields:
            rate = cost["saved_bytes"] / 2**20 / cost["save_s"]
            assert float(fields["save_mib_per_s"]) == pytest.approx(rate, rel=0.5)  # the journal's time is rounded


def test_live_migrations_are_points(tmp_path: Path) -> None:
    result, journal = rehearse(tmp_path, JOBS, extras="whole,live", migration={"mechanism": "live"})
    told = [entry for entry in journal if entry["kind"] == "migration"]
    found = points(result.path)["migration"]
    assert len(found) == len(told) > 0
    for entry, (tags, fields) in zip(told, found, strict=True):
        assert tags["source"] == f"node-{entry['source']}"
        assert tags["node"] == f"node-{entry['target']}"
        assert float(fields["mib_per_s"]) == pytest.approx(entry["bytes"] / 2**20 / entry["elapsed_s"])


def test_a_rehearsal_fails_at_its_end_for_a_point_that_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from testbed.control.recorder import Recorder

    job = Recorder.job

    def wrong(self: Recorder, live, state: str, text: str = "") -> None:
        job(self, live, state, text)
        self.point("job", {"job": str(live.job_id)}, {"state": 7})

    monkeypatch.setattr(Recorder, "job", wrong)
    watcher = Watcher()
    with pytest.raises(PointError, match=r"point job\.state: expected str, found int"):
        rehearse(tmp_path, JOBS, watcher=watcher)
    told = [line.split(" ", 1)[1] for line in watcher.lines if "left out" in line]
    assert told[0] == "a measurement is left out each time: point job.state: expected str, found int"
    assert told[1].startswith("points left out, by field: {'job.state': ")
    assert len(told) == 2
