"""A live run as comparisons see it: its jobs, when they ran, and which runs are repeats of it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
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
    """One run directory, read; `journal` has the events that are no decisions."""

    facts: RunFacts
    schedule: Schedule
    decisions: tuple[DecisionRecord, ...]
    journal: tuple[events.Known, ...]

    @property
    def name(self) -> str:
        """The run's name."""
        return self.facts.name

    @property
    def path(self) -> Path:
        """Its directory."""
        return self.facts.path

    @property
    def time_scale(self) -> float:
        """Trace seconds in a wall second."""
        return self.facts.time_scale

    @property
    def policy(self) -> str:
        """The policy's name."""
        return self.facts.policy

    @property
    def period_s(self) -> float | None:
        """Trace seconds between periodic passes, None without them."""
        value = self.facts.manifest.get("period_s")
        return None if value is None else float(value)


@dataclass(slots=True)
class _Journal:
    """Keeps what a pass over the journal shows."""

    timeline: Timeline
    period_s: float | None
    numbering: Numbering = field(default_factory=Numbering)
    decisions: list[DecisionRecord] = field(default_factory=list)
    others: list[events.Known] = field(default_factory=list)

    def take(self, event: events.Known, history: History) -> None:
        self.timeline.take(event, history)
        if isinstance(event, events.Decision):
            self.decisions.append(of_journal(event, self.period_s, self.numbering))
        else:
            self.others.append(event)


def read_live(path: Path) -> LiveRun:
    """Read a run directory, complete or not; raise `UserError` for what is none, or is broken."""
    if not path.is_dir():
        raise UserError(f"{path}: no such run directory")
    manifest = read_json(path / "manifest.json")
    try:
        period_s = manifest["period_s"]
        journal = _Journal(Timeline.of_manifest(manifest), None if period_s is None else float(str(period_s)))
    except (LookupError, TypeError, ValueError) as error:
        raise UserError(f"{path / 'manifest.json'}: expected the manifest of a run: {error!r}") from error
    facts = read_facts(path, journal.take)
    return LiveRun(facts, journal.timeline.schedule(), tuple(journal.decisions), tuple(journal.others))


def segment_of(run: RunFacts) -> str:
    """Return a digest of what runs must share to be runs of one scenario segment.

    The jobs of the trace, the nodes (size, processor, driver, how many), the time scale, the seed, the programs that
    jobs become and how they migrate; not the policy.
    """
    scenario = run.manifest.get("scenario") or {}
    jobs = [
        (job.job_id, job.submit_time_s, job.tasks, job.cpu_need_frac, job.mem_req_frac, job.run_time_s)
        for job in sorted(run.jobs, key=lambda job: job.job_id)
    ]
    nodes = [[facts.get(name) for name in _NODE_FACTS] for facts in run.manifest.get("nodes", {}).values()]
    rest = [scenario.get("programs"), scenario.get("migration"), run.tau_s]
    text = json.dumps([jobs, nodes, run.time_scale, run.seed, rest], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
