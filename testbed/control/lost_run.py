"""The state of a run whose controller was lost, read from its run directory for the controller that resumes it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from pydantic import ValidationError

from testbed.bus.messages import NodeFacts
from testbed.bus.results import Verdicts
from testbed.control.dedicated import Shape, shapes_of
from testbed.control.manifest import job_of
from testbed.control.recorder import CapWindow
from testbed.control.result_checks import verdicts_of
from testbed.control.work_rates import MeasuredRates
from testbed.errors import UserError
from testbed.lab.guests import program_of
from testbed.measure.line_protocol import parse_line
from testbed.measure.rundir import read_json
from testbed.measure.spool import read_lines
from testbed.measure.torn_lines import Torn, cut_torn_lines
from testbed.run import events
from testbed.run.history import History
from testbed.run.parts import has_journal
from testbed.run.reader import read_history
from testbed.scenario.schema import Scenario
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.policies.view import Policy
from testbed.scheduling.workload.jobs import Job

_FIRST_VERSION = 5  # of the journal, whose lines have checksums
_LATE_S = 3600.0  # a point this long after the last journal entry has an impossible time, and is ignored


@dataclass(slots=True)
class _Told:
    """Data of the journal that is not part of the run's `History`."""

    calibration: events.Calibration | None = None
    results: events.Results | None = None
    decide_s: list[float] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    arrived: list[events.Arrived] = field(default_factory=list)

    def hear(self, event: events.Known, _history: History) -> None:
        match event:
            case events.Calibration():
                self.calibration = event
            case events.Results():
                self.results = event
            case events.Decision(decide_s=decide_s):
                self.decide_s.append(decide_s)
            case events.Refused(point=where):
                self.refused.append(where)
            case events.Arrived():
                self.arrived.append(event)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRun:
    """The run: its scenario, policy and jobs, its `history` from the journal, and state that its controller held.

    If `history.ended`, only the results of the run are missing.

    `since_s` is the last sign of life of the lost controller, in wall seconds of the run, and `trace_s` the trace time
    of that moment. `facts` are the facts of the nodes when the run began, by name. `jobs` are the jobs of the trace, or
    the jobs that users submitted to a served lab: `arrived` has the users, and the addresses of their guests.
    """

    path: Path
    scenario: Scenario
    policy: Policy
    jobs: Sequence[Job]
    history: History
    anchor_ns: int
    since_s: float
    trace_s: float
    facts: Mapping[str, NodeFacts]
    rates: Mapping[Shape, float]
    measured: MeasuredRates | None
    verdicts: Verdicts | None
    decide_s: Sequence[float]
    cap_windows: Sequence[CapWindow]
    refused: Sequence[str]
    torn: Sequence[Torn]
    arrived: Sequence[events.Arrived] = ()

    @property
    def run_tag(self) -> str:
        """The hexadecimal digits in the names of all guests and images of the run."""
        return "" if self.history.begin is None else self.history.begin.run_tag

    def now_s(self) -> float:
        """Return the wall seconds since the run began, by the wall clock, but never less than `since_s`."""
        return max(self.since_s, (time.time_ns() - self.anchor_ns) / 1e9)


def load_lost_run(path: Path) -> LostRun:
    """Read a run directory whose lock this process holds, and remove lines that a crash has cut off.

    Raises `UserError` for a run that is over, that has measured nothing yet, or that this version cannot resume.
    """
    if not has_journal(path):
        raise UserError(f"{path}: no journal: expected a run directory")
    if (path / "summary.json").exists():
        raise UserError(f"{path}: {_how_ended(path)}: there is nothing to resume")
    torn = cut_torn_lines(path)
    told = _Told()
    history = read_history(path / "events.jsonl", (), told.hear)
    begin, replay = history.begin, history.replay
    if begin is None or replay is None:
        raise UserError(f"{path}: the controller was lost before the replay began: nothing was measured yet, remove "
                        "its agents by `testbed cleanup`, and begin again with `testbed run`")  # fmt: skip
    if history.version < _FIRST_VERSION:
        raise UserError(f"{path}: its journal has version {history.version}: only runs with journals of version "
                        f"{_FIRST_VERSION} and later can be resumed")  # fmt: skip
    manifest = read_json(path / "manifest.json")
    try:
        scenario = Scenario.model_validate(manifest["scenario"])
        anchor_ns = int(_table(manifest, "clocks")["anchor_unix_ns"])
        facts = {name: msgspec.convert(found, NodeFacts) for name, found in _table(manifest, "nodes").items()}
        rates = {str(name): float(rate) for name, rate in _table(manifest, "units_per_core_s").items()}
        policy = parse(str(manifest["policy"]), scenario.period_s)
    except (KeyError, TypeError, ValueError, ValidationError, msgspec.ValidationError) as error:
        raise UserError(f"{path / 'manifest.json'}: {error}: expected the manifest that the run began with") from None
    jobs = [job_of(job) for job in (*replay.trace, *(arrived.arrival for arrived in told.arrived))]
    programs = {job.job_id: program_of(job, scenario.programs) for job in jobs}
    windows, last_point_s = _points(path, anchor_ns, programs)
    since_s = max(history.last_s, last_point_s if last_point_s < history.last_s + _LATE_S else 0.0)
    clock_s = history.standstill.clock_s
    shapes = shapes_of(scenario.serve, len(scenario.nodes)) if replay.served else {Shape.of(job) for job in jobs}
    by_shape = {shape: rates[str(shape)] for shape in shapes}
    return LostRun(
        path=path, scenario=scenario, policy=policy, jobs=jobs, history=history, anchor_ns=anchor_ns, since_s=since_s,
        trace_s=(clock_s(since_s) - clock_s(replay.t_s)) * scenario.time_scale + replay.trace_s, facts=facts,
        rates=by_shape, measured=_measured(told.calibration, jobs, by_shape),
        verdicts=None if told.results is None else verdicts_of(told.results), decide_s=told.decide_s,
        cap_windows=windows, refused=told.refused, torn=torn, arrived=told.arrived,
    )  # fmt: skip


def _how_ended(path: Path) -> str:
    complete = read_json(path / "summary.json").get("complete")
    return "the run is complete" if complete else "the run ended early, and its guests were destroyed"


def _table(manifest: Mapping[str, object], key: str) -> Mapping[str, Any]:
    found = manifest[key]
    if not isinstance(found, dict):
        raise TypeError(f"{key} is {type(found).__name__}")
    return found


def _measured(
    calibration: events.Calibration | None, jobs: Sequence[Job], rates: Mapping[Shape, float]
) -> MeasuredRates | None:
    """Return the rates that were measured before the replay, None if the scenario gave them."""
    if calibration is None or calibration.core_units_per_s is None:
        return None
    by_job = {job.job_id: rates[Shape.of(job)] for job in jobs}
    return MeasuredRates(calibration.core_units_per_s, by_job, calibration.probed_units_per_s or 0.0)


def _points(path: Path, anchor_ns: int, programs: Mapping[int, str]) -> tuple[list[CapWindow], float]:
    """Return the windows of constant caps in the points, and the time of the last point, in wall seconds of the run."""
    windows: list[CapWindow] = []
    last_ns = anchor_ns
    for line, _ in read_lines(path):
        last_ns = max(last_ns, int(line.rpartition(" ")[2]))
        if line.startswith("cap,"):
            point = parse_line(line)
            name = programs.get(int(point.tags["job"]), "")
            windows.append(msgspec.convert({"program": name, **point.fields}, CapWindow))
    return windows, (last_ns - anchor_ns) / 1e9
