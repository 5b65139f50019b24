"""Reader of the story of one job from a run directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.errors import UserError
from testbed.measure.rundir import read_json
from testbed.study.report.run.facts import JobRow, RunFacts, read_facts
from testbed.study.report.run.job_story import Story
from testbed.study.report.run.job_teller import Teller
from testbed.study.report.run.job_waits import Waits


@dataclass(frozen=True, slots=True)
class JobReport:
    """The story of a job, with its run and its row of jobs.csv."""

    story: Story
    run: RunFacts
    row: JobRow

    @property
    def work_s(self) -> float:
        """The job's work in trace seconds on dedicated nodes; from jobs.csv if the run has ended."""
        return max(self.story.work_s, self.row.virtual_time_s or 0.0)


def read_job_report(path: Path, job: int) -> JobReport:
    """Read the story of a job; its run may be complete, killed or still going on.

    Raises `UserError` for a folder that is no run directory or is broken, and for an unknown job.
    """
    manifest = read_json(path / "manifest.json") if (path / "manifest.json").exists() else {}
    nodes = manifest.get("nodes")
    nodes = nodes if isinstance(nodes, dict) else {}
    teller = Teller(job, tuple(map(str, nodes)), _waits(manifest, nodes))
    run = read_facts(path, teller.take)
    row = run.job_by_id.get(job)
    if row is None:
        there = _ranges(sorted(run.job_by_id))
        raise UserError(f"{path}: no job {job}: " + (f"expected one of {there}" if there else "no job was submitted"))
    return JobReport(teller.finish(), run, row)


def _waits(manifest: Mapping[str, Any], nodes: Mapping[str, Any]) -> Waits:
    memory = [facts.get("memory_mib") if isinstance(facts, dict) else None for facts in nodes.values()]
    scenario = manifest.get("scenario")
    migration = scenario.get("migration") if isinstance(scenario, dict) else None
    live = isinstance(migration, dict) and migration.get("mechanism") == "live"
    known = [each for each in memory if isinstance(each, int)]
    return Waits(known if len(known) == len(memory) else (), live=live)


def _ranges(numbers: Sequence[int]) -> str:
    """Return sorted numbers as short text: 1 to 3, 5, 7."""
    parts: list[str] = []
    first = 0
    for index, number in enumerate(numbers):
        if index + 1 < len(numbers) and numbers[index + 1] == number + 1:
            continue
        count = index - first + 1
        parts += [f"{numbers[first]} to {number}"] if count > 2 else [str(each) for each in numbers[first : index + 1]]
        first = index + 1
    return ", ".join(parts)
