"""A live run as comparisons need it: its jobs, schedule and decisions, and its conditions, which repeats share."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import UserError
from testbed.measure.rundir import read_json
from testbed.run import events
from testbed.run.history import History
from testbed.study.compare.decisions import DecisionRecord, Numbering, of_journal
from testbed.study.report.run.facts import RunFacts, read_facts
from testbed.study.report.run.schedule import Schedule
from testbed.study.report.run.timeline import Timeline

_NODE_FACTS = ("cpus", "memory_mib", "machine_cores", "cpu_model", "driver")


@dataclass(frozen=True, slots=True, eq=False)
class LiveRun:
    """The content of one run directory; `journal` has the events that are no decisions."""

    facts: RunFacts
    schedule: Schedule
    decisions: tuple[DecisionRecord, ...]
    journal: tuple[events.Known, ...]

    @property
    def period_s(self) -> float | None:
        """Trace seconds between periodic passes, None for a policy without them."""
        value = self.facts.manifest.get("period_s")
        return None if value is None else float(value)


def read_live(path: Path) -> LiveRun:
    """Read a run directory, complete or not. Raises `UserError` if it is missing, broken, or no run directory."""
    if not path.is_dir():
        raise UserError(f"{path}: no such run directory")
    manifest = read_json(path / "manifest.json")
    try:
        period_s = None if manifest["period_s"] is None else float(str(manifest["period_s"]))
        timeline = Timeline.of_manifest(manifest)
    except (LookupError, TypeError, ValueError) as error:
        raise UserError(f"{path / 'manifest.json'}: expected the manifest of a run: {error!r}") from error
    numbering = Numbering()
    decisions: list[DecisionRecord] = []
    others: list[events.Known] = []

    def keep(event: events.Known, _history: History) -> None:
        if isinstance(event, events.Decision):
            decisions.append(of_journal(event, period_s, numbering))
        else:
            others.append(event)

    facts = read_facts(path, timeline.take, keep)
    return LiveRun(facts, timeline.schedule(), tuple(decisions), tuple(others))


def conditions_of(run: RunFacts) -> str:
    """Return the identity of a run's conditions: a digest of everything that repeats must have in common.

    These are the jobs of the trace, the nodes (number, size, processor, driver), the time scale, the seed, the programs
    of the jobs, the migration mechanism, and the threshold of the stretch; not the policy.
    """
    scenario = run.manifest.get("scenario") or {}
    jobs = [
        (job.job_id, job.submit_time_s, job.tasks, job.cpu_need_frac, job.mem_req_frac, job.run_time_s)
        for job in sorted(run.jobs, key=lambda job: job.job_id)
    ]
    nodes = [[facts.get(name) for name in _NODE_FACTS] for facts in run.manifest.get("nodes", {}).values()]
    programs = {key: value for key, value in (scenario.get("programs") or {}).items() if key != "units_per_core_s"}
    if work := run.manifest.get("work"):  # resolved, where the scenario has the default
        programs["work"] = work
    rest = [programs, scenario.get("migration"), run.tau_s]
    text = json.dumps([jobs, nodes, run.time_scale, run.seed, rest], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
