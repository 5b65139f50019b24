"""The traces of a campaign: their list, their identities, and the recipes from which workers make their jobs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from testbed.errors import UserError
from testbed.scheduling.campaign.digests import digest, file_digest
from testbed.scheduling.campaign.model import Campaign, LogTraces, LublinTraces, TableTraces
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.load import scale_load
from testbed.scheduling.workload.segments import Week, cut, weeks
from testbed.scheduling.workload.synthetic import synthetic_trace
from testbed.scheduling.workload.trace import load_trace

TRACES_VARIABLE = "TESTBED_TRACES"  # a folder of logs
_BESIDE_PROJECT = Path(__file__).resolve().parents[4] / "shared" / "traces"


@dataclass(frozen=True, slots=True)
class Instance:
    """One trace at one load, on `nodes` nodes. `identity` is a digest of the source of its jobs."""

    traces: str
    label: str  # unique in a campaign, such as scaled/seed-7/load-0.3
    number: int  # position among the seeds, weeks or files
    nodes: int
    load: float | None  # None is unscaled
    identity: str
    seed: int | None = None
    week: int | None = None
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """The source of the jobs for a worker on any machine: from a seed, or from the jobs of the unscaled trace."""

    nodes: int
    load: float | None
    jobs: tuple[Job, ...] = ()
    seed: int = 0
    model_jobs: int = 0
    mode: str = ""

    def make(self) -> list[Job]:
        """Return the jobs, by submission. Raises UserError for a trace that cannot be scaled."""
        jobs = list(self.jobs) or synthetic_trace(self.nodes, self.model_jobs, self.seed, self.mode)
        return jobs if self.load is None else scale_load(jobs, self.nodes, self.load)


@dataclass(slots=True)
class TraceSets:
    """The traces of a campaign file at `path`; relative paths start from its folder."""

    campaign: Campaign
    path: Path
    _logs: dict[str, list[Job]] = field(default_factory=dict)

    def instances(self) -> list[Instance]:
        """Return all traces: the first of each set at each load, then the second ones, and so on.

        Raises UserError for files that are missing or invalid, and for weeks that a log does not have.
        """
        found: dict[str, Instance] = {}
        for source in self.campaign.traces:
            loads: Sequence[float | None] = self.campaign.loads if source.loads is None else source.loads
            for load in loads or (None,):
                for instance in self._of(source, load):
                    found.setdefault(instance.label, instance)
        return sorted(found.values(), key=lambda instance: instance.number)

    def recipe(self, instance: Instance) -> Recipe:
        """Return the recipe from which a worker makes the jobs. Raises UserError for an invalid file."""
        source = next(source for source in self.campaign.traces if source.name == instance.traces)
        match source:
            case LublinTraces():
                return Recipe(
                    instance.nodes, instance.load,
                    seed=instance.seed or 0, model_jobs=source.jobs, mode=source.mode,
                )  # fmt: skip
            case LogTraces():
                jobs = self._log(source)
                chosen = jobs if instance.week is None else cut(jobs, Week(instance.week))
                return Recipe(instance.nodes, instance.load, tuple(chosen))
            case TableTraces():
                assert instance.file is not None  # noqa: S101  # `_of` gives each a file
                return Recipe(instance.nodes, instance.load, tuple(load_trace(instance.file)))

    def _of(self, source: LublinTraces | LogTraces | TableTraces, load: float | None) -> list[Instance]:
        at = "" if load is None else f"/load-{load:g}"

        def instance(name: str, number: int, identity: list[object], **what: object) -> Instance:
            label = f"{source.name}/{name}{at}"
            return Instance(
                source.name, label, number, source.nodes, load, digest(identity, source.nodes, load),
                **what,  # type: ignore[arg-type]  # seed, week or file
            )  # fmt: skip

        match source:
            case LublinTraces(jobs=jobs, seeds=seeds, mode=mode):
                return [
                    instance(f"seed-{seed}", number, ["lublin", jobs, seed, mode], seed=seed)
                    for number, seed in enumerate(seeds)
                ]
            case LogTraces(reading=reading):
                path = self._find(source.path)
                content = file_digest(path)
                if source.weeks == "whole":
                    return [instance("whole", 0, ["log", content, reading], file=path)]
                return [
                    instance(f"week-{week}", number, ["log", content, reading, week], week=week, file=path)
                    for number, week in enumerate(self._weeks(source))
                ]
            case TableTraces():
                return [
                    instance(path.name, number, ["table", file_digest(path)], file=path)
                    for number, path in enumerate(self._files(source))
                ]

    def _weeks(self, source: LogTraces) -> list[int]:
        there = [week.index for week in weeks(self._log(source))]
        if source.weeks == "all":
            return there
        chosen = [week for week in source.weeks if isinstance(week, int)]
        if absent := sorted(set(chosen) - set(there)):
            raise UserError(
                f"{self.path}: traces {source.name}: no job was submitted in week {absent[0]} of {source.path}; "
                f"there are weeks {there[0]} to {there[-1]}"
            )
        return chosen

    def _log(self, source: LogTraces) -> list[Job]:
        if source.name not in self._logs:
            path = self._find(source.path)
            self._logs[source.name] = load_trace(path, source.reading)
        return self._logs[source.name]

    def _find(self, path: Path) -> Path:
        places = [self.path.parent / path]
        if path.name == str(path):
            folder = os.environ.get(TRACES_VARIABLE)
            places.append((Path(folder) if folder else _BESIDE_PROJECT) / path)
        for place in places:
            if place.is_file():
                return place
        raise UserError(
            f"{self.path}: no trace {path} in {' or '.join(str(place.parent) for place in places)}: logs are in the "
            f"Parallel Workloads Archive (www.cs.huji.ac.il/labs/parallel/workload); {TRACES_VARIABLE} names their "
            "folder"
        )

    def _files(self, source: TableTraces) -> list[Path]:
        files: set[Path] = set()
        for pattern in source.files:
            matches = [path for path in self.path.parent.glob(pattern) if path.is_file()]
            if not matches:
                raise UserError(f"{self.path}: traces {source.name}: no file matches {pattern}")
            files.update(matches)
        names = [path.name for path in files]
        if len(set(names)) != len(names):
            raise UserError(f"{self.path}: traces {source.name}: files with different names; some have the same")
        return sorted(files, key=lambda path: path.name)
