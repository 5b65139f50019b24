"""The schema is complete, its page is not stale, and its closed lists agree with the controller's."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.live_jobs import live_job

from testbed.cli.schema import schema
from testbed.control.planner import Target, Verb
from testbed.control.recorder import Recorder
from testbed.errors import UserError
from testbed.lab.liveness import Standing
from testbed.measure.points import PointError, to_line
from testbed.measure.recorders import Recorders
from testbed.measure.rundir import RunDirectory, read_journal
from testbed.measure.schema import MEASUREMENTS, RUN_TAGS, TAGS
from testbed.measure.schema_page import as_data, markdown
from testbed.measure.spool import read_lines
from testbed.run.events import Penalty
from testbed.run.intents import Flight
from testbed.run.interruptions import LIVE, SAVE_RESTORE
from testbed.run.phases import Phase
from testbed.scheduling.workload.jobs import Job

PAGE = Path(__file__).parents[2] / "docs" / "measurements.md"
UNITS = {
    "_s": {"s", "trace s"}, "_mib": {"MiB"}, "_bytes": {"B"}, "_cores": {"cores"}, "_mib_per_s": {"MiB/s"},
    "_frac": {"1", "nodes"}, "_per_core_s": {"units/s"}, "_units_per_s": {"units/s"},
}  # fmt: skip


def recorder(tmp_path: Path, **options: object) -> Recorder:
    directory = RunDirectory(tmp_path / "run", {"run": "r"})
    directory.open()
    return Recorder(directory, lambda: 1.0, lambda: 60.0, **options)


def test_the_page_is_of_this_schema() -> None:
    found = PAGE.read_text(encoding="utf-8")
    assert found == markdown(), "stale: testbed schema --markdown > docs/measurements.md"


def test_every_tag_field_and_measurement_is_told() -> None:
    for tag in TAGS.values():
        assert tag.kind in (str, int)
        assert tag.meaning
        assert tag.bound
    for measurement in MEASUREMENTS.values():
        assert measurement.meaning
        assert measurement.fields
        assert set(measurement.tags) <= set(TAGS) - set(RUN_TAGS)
        names = [field.name for field in measurement.fields]
        assert Counter([*names, *measurement.tags, *RUN_TAGS, "time"]).most_common(1)[0][1] == 1
        for field in measurement.fields:
            assert field.kind in (float, int, str, bool)
            assert field.meaning
            ends = [end for end in UNITS if f"_{field.name}".endswith(end)]
            if ends:
                assert field.unit in UNITS[max(ends, key=len)], f"{measurement.name}.{field.name}"
            else:
                assert field.unit in ("", "1", "B", "units"), f"{measurement.name}.{field.name}: unit not in its name"
    assert {tag for each in MEASUREMENTS.values() for tag in each.tags} == set(TAGS) - set(RUN_TAGS)


def test_closed_sets_are_those_of_the_controller() -> None:
    assert set(TAGS["verb"].values) == {verb.value for verb in Verb}
    assert set(TAGS["mechanism"].values) == {SAVE_RESTORE, LIVE}
    fields = {field.name for field in MEASUREMENTS["rescheduling"].fields}
    keys = {field for field in Penalty.__struct_fields__ if field.endswith(("_s", "_bytes"))} - {"t_s", "trace_s"}
    assert keys < fields


@pytest.mark.parametrize(
    ("measurement", "tags", "words"),
    [
        ("action", {"verb": "resume"}, "tag verb = 'resume': expected one of start, cap, save"),
        ("action", {"job": "j1"}, "tag job = 'j1': expected a number"),
        ("action", {"job": "-1"}, "tag job = '-1': expected a number"),
        ("action", {"job": "²"}, "tag job = '²': expected a number"),
        ("action_phase", {"phase": "warp"}, "tag phase = 'warp'"),
        ("rescheduling", {"reason": "whim"}, "tag reason = 'whim'"),
        ("rescheduling", {"mechanism": ""}, "tag mechanism = ''"),
    ],
)
def test_a_tag_outside_its_closed_set_is_refused(measurement: str, tags: dict, words: str) -> None:
    field = MEASUREMENTS[measurement].fields[0]
    with pytest.raises(PointError, match=words):
        to_line(measurement, tags, {field.name: 1.0}, 1)


def test_a_refused_point_is_told_once_and_counted_and_the_run_goes_on(tmp_path: Path) -> None:
    lines: list[str] = []
    told = recorder(tmp_path, watch=lambda _trace_s, text: lines.append(text))
    for number in range(3):
        told.point("cap", {"node": "a"}, {"window_s": math.nan, "requested_cores": 1.0})
        told.point("cap", {"node": "a"}, {"requested_cores": "much"})
        told.point("cap", {"node": "a"}, {"window_s": 1.0}, number)
    told.close()
    assert dict(told.refused) == {"cap.window_s": 3, "cap.requested_cores": 3}
    assert [entry["point"] for entry in read_journal(told.directory.path / "events.jsonl")] == list(told.refused)
    assert lines == [
        "a measurement is left out each time: point cap.window_s = nan: expected a finite number",
        "a measurement is left out each time: point cap.requested_cores: expected float, found str",
    ]
    assert str(told.first_refusal) in lines[0]
    assert [line for line, _ in read_lines(told.directory.path)] == [
        f"cap,node=a,run=r window_s=1.0 {n}" for n in range(3)
    ]


def test_recorders_find_all_points_in_the_files_when_they_close(tmp_path: Path) -> None:
    found: list[str] = []

    class Reader:
        def open(self, path: Path, manifest: object) -> None:
            del manifest
            self.path = path

        def journal(self, entry: object) -> None:
            pass

        def point(self, *point: object) -> None:
            pass

        def close(self) -> None:
            found.extend(line for line, _ in read_lines(self.path))

    directory = RunDirectory(tmp_path / "run", {}, Recorders({"reader": Reader()}))
    directory.open()
    told = Recorder(directory, lambda: 1.0, lambda: 60.0)
    directory.write_manifest({})
    told.point("cap", {"node": "a"}, {"window_s": 1.0}, 5)
    told.close()
    assert found == ["cap,node=a window_s=1.0 5"]


def test_rates_are_of_what_was_moved(tmp_path: Path) -> None:
    told = recorder(tmp_path, node_names=("a", "b"))
    flight = Flight(1, "migrate", (1, 7), 0.5, 0.0, for_a_move=True)
    job = Job(1, 0.0, 2, 1.0, 0.1, 60.0)
    live_job(job, (), told.history, phase=Phase.MIGRATING, running_on=(0, 0), migrating_to=(1, 7), flight=flight)
    told.migration(job=1, task=0, source=0, target=1, counted=True, bytes=3 << 20, elapsed_s=1.5)
    told.migration(job=1, task=1, source=0, target=1, error="stays", at_source=True, at_target=None)
    told.migration(job=1, task=1, source=0, target=7, counted=False, bytes=0, elapsed_s=2.0, downtime_s=2.0, rounds=0)
    told.cap_drift({"node": "a", "job": "1", "task": "0"}, -1.0, 0.5)
    told.node("b", Standing.LOST, "silent for 5.0 s")
    told.close()
    lines = [line.rsplit(" ", 1)[0] for line, _ in read_lines(told.directory.path)]
    assert lines == [
        "migration,job=1,node=b,run=r,source=a,task=0 counted=true,bytes=3145728i,elapsed_s=1.5,mib_per_s=2.0",
        "migration,job=1,node=7,run=r,source=a,task=1 counted=false,bytes=0i,elapsed_s=2.0,downtime_s=2.0,rounds=0i",
        "cap_drift,job=1,node=a,run=r,task=0 found_cores=-1.0,expected_cores=0.5",
        'node_state,node=b,run=r online=false,reason="silent for 5.0 s"',
    ]
    entries = read_journal(told.directory.path / "events.jsonl")
    assert [entry["kind"] for entry in entries] == ["migration", "migration", "migration", "node"]
    assert entries[1]["at_target"] is None
    assert entries[1]["error"] == "stays"


def test_a_decision_says_who_runs_who_waits_and_how_much_is_used(tmp_path: Path) -> None:
    told = recorder(tmp_path)
    jobs = [
        live_job(Job(n, 0.0, tasks, need, 0.1, 60.0), was_started=n == 3)
        for n, tasks, need in ((1, 2, 0.5), (2, 1, 1.0), (3, 1, 0.25), (4, 4, 1.0))
    ]
    told.decision(jobs, {1: Target((0, 1), 0.5), 2: Target((0,), 1.0)}, 0.001)
    told.decision([], {}, 0.002)
    told.close()
    first, second = (line for line, _ in read_lines(told.directory.path))
    assert first == (
        "decision,run=r trace_s=60.0,decide_s=0.001,jobs=4i,running=2i,waiting=1i,paused=1i,min_yield_frac=0.5,"
        "mean_yield_frac=0.75,demand_frac=6.25,useful_frac=1.5 1000000000"
    )
    assert second == (
        "decision,run=r trace_s=60.0,decide_s=0.002,jobs=0i,running=0i,waiting=0i,paused=0i,min_yield_frac=0.0,"
        "mean_yield_frac=0.0,demand_frac=0.0,useful_frac=0.0 1000000000"
    )
    assert told.decide_s == [0.001, 0.002]


def test_the_command_prints_what_was_asked() -> None:
    def output(*words: str) -> str:
        result = CliRunner().invoke(schema, words, standalone_mode=False)
        assert result.exception is None, result.output
        return result.output

    assert output("--markdown") == markdown()
    assert json.loads(output("--json")) == json.loads(json.dumps(as_data()))
    text = output("rescheduling")
    assert "penalty_s" in text
    assert "save-restore, live" in text
    assert "superstep" not in text
    assert "stage" not in text
    everything = output()
    assert all(f"\n{name}: " in everything for name in MEASUREMENTS)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["reschedule"], "nearest: rescheduling"),
        (["--json", "job"], "whole schema"),
        (["--json", "--markdown"], "whole"),
    ],
)
def test_the_command_refuses_what_it_cannot_print(words: list[str], error: str) -> None:
    result = CliRunner().invoke(schema, words, standalone_mode=False)
    assert isinstance(result.exception, UserError)
    assert error in str(result.exception)
