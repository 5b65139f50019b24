"""The facts of a run, complete or not, from its directory; the journal is read in one pass and not kept in memory."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, cast

from testbed.errors import UserError
from testbed.measure.reasons import UNKNOWN, Reason, reason_of
from testbed.measure.rundir import JOB_COLUMNS, read_json
from testbed.measure.tables import JOBS
from testbed.run import events
from testbed.run.history import History
from testbed.run.interruptions import LIVE
from testbed.run.job_history import JobHistory
from testbed.run.reader import Listener, read_history

Remark: TypeAlias = (
    events.Retry | events.Node | events.RecorderFailed | events.Aborted | events.Doubt | events.Results | events.Order
    | events.ClockStarted | events.Resumed | events.Recovered
)  # fmt: skip


_WHOLE = frozenset(column.name for column in JOBS.columns if column.kind == "int")
_MAY_LACK = frozenset({"run_time_s", "start_time_s", "end_time_s", "stretch", "virtual_time_s"})


def work_is_cpu_time(manifest: Mapping[str, Any]) -> bool:
    """Return whether the work of jobs is CPU time, from the manifest of their run; old ones have only the scenario."""
    programs = (manifest.get("scenario") or {}).get("programs") or {}
    return bool((manifest.get("work") or programs.get("work")) == "cpu-time")


@dataclass(frozen=True, slots=True)
class JobRow:
    """A row of jobs.csv: times in trace seconds, `penalty_s` in wall seconds; None for steps not reached."""

    job_id: int
    submit_time_s: float
    tasks: int
    cpu_need_frac: float
    mem_req_frac: float
    run_time_s: float | None
    start_time_s: float | None
    end_time_s: float | None
    stretch: float | None
    virtual_time_s: float | None
    preemptions: int
    migrations: int
    penalty_s: float
    bytes_moved: int
    live_migrations: int
    state: str

    @property
    def need_cpu(self) -> float:
        """Total CPU need of all tasks, in nodes."""
        return self.tasks * self.cpu_need_frac


@dataclass(frozen=True)
class RunFacts:
    """One run: its manifest and summary, its jobs, and the rare entries of its journal.

    `summary` is None if the controller was killed before it wrote one. `history` is the state after the last entry of
    the journal; `reschedulings` are the complete ones. `remarks` are retries, lost nodes and similar events.
    """

    path: Path
    manifest: Mapping[str, Any]
    summary: Mapping[str, Any] | None
    jobs: tuple[JobRow, ...]
    reschedulings: tuple[events.Rescheduling, ...]
    remarks: tuple[Remark, ...]
    history: History

    @property
    def name(self) -> str:
        """The run's name, which is that of its directory."""
        return self.path.resolve().name

    @property
    def _begin(self) -> events.Begin | None:
        return self.history.begin

    @property
    def policy(self) -> str:
        """The policy's name."""
        return str(self.manifest.get("policy") or (self._begin and self._begin.policy) or "unknown policy")

    @property
    def scenario(self) -> str:
        """The scenario's name."""
        table = self.manifest.get("scenario")
        name = table.get("name") if isinstance(table, dict) else None
        return str(name or (self._begin and self._begin.scenario) or "unknown scenario")

    @property
    def tag(self) -> str:
        """The identity of this run, empty if unknown."""
        return str(self.manifest.get("run_tag") or (self._begin and self._begin.run_tag) or "")

    @property
    def seed(self) -> object:
        """The scenario's seed, None if unknown."""
        return self.manifest.get("seed")

    @property
    def work_is_cpu_time(self) -> bool:
        """Whether the work of the run's jobs is CPU time, so that the speed of cores does not matter."""
        return work_is_cpu_time(self.manifest)

    @property
    def complete(self) -> bool:
        """Whether all jobs ended before the run ended."""
        return bool(self.summary and self.summary.get("complete"))

    @property
    def failed(self) -> dict[str, Reason]:
        """Reasons of failed jobs, by job; for summaries of older versions, codes are derived from the texts."""
        if self.summary is not None:
            codes = self.summary.get("failure_codes", {})
            return {
                str(job): reason_of(str(text), codes.get(job)) for job, text in self.summary.get("failed", {}).items()
            }
        unknown = Reason(UNKNOWN, "the journal says no more")
        told = (job for job in self.history.jobs.values() if job.failure_text)
        reasons = {job.job: reason_of(job.failure_text, job.failure_code) for job in told}
        return {str(job.job_id): reasons.get(job.job_id, unknown) for job in self.jobs if job.state == "failed"}

    @property
    def done(self) -> int:
        """Number of jobs that are done."""
        return sum(job.state == "done" for job in self.jobs)

    @property
    def blind_s(self) -> float:
        """Wall seconds for which the run was without a controller."""
        return self.history.standstill.blind_s

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """Metrics by name, each with `value` (None without measurements) and `unit`."""
        return cast("dict[str, dict[str, Any]]", self.summary.get("metrics", {})) if self.summary else {}

    @property
    def tau_s(self) -> float:
        """τ of the bounded stretch, in seconds."""
        scenario = self.manifest.get("scenario") or {}
        value = (self.summary or {}).get("stretch_bound_s") or scenario.get("bound", {}).get("tau_s") or 10.0
        return float(value)

    @property
    def time_scale(self) -> float:
        """Trace seconds per wall second."""
        return float(self.manifest.get("clocks", {}).get("time_scale", 1.0))

    @property
    def replay_begin_s(self) -> float:
        """The `t_s` of trace second 0."""
        return float(self.manifest.get("clocks", {}).get("replay_begin_s", 0.0))

    @property
    def anchor_ns(self) -> int | None:
        """Unix time of `t_s` 0, None if unknown."""
        value = self.manifest.get("clocks", {}).get("anchor_unix_ns")
        return None if value is None else int(value)

    @property
    def when(self) -> str:
        """The begin of the run as text, in UTC."""
        if self.anchor_ns is None:
            return "unknown"
        return datetime.fromtimestamp(self.anchor_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

    @property
    def node_names(self) -> tuple[str, ...]:
        """Names of the nodes, in the order of node numbers."""
        return tuple(map(str, self.manifest.get("nodes", {})))

    @cached_property
    def job_by_id(self) -> dict[int, JobRow]:
        """Jobs by their number."""
        return {job.job_id: job for job in self.jobs}

    def summary_so_far(self) -> dict[str, Any]:
        """Return summary.json with the codes of failures, or its substitute before the controller wrote it."""
        codes = {"failure_codes": {job: reason.code for job, reason in self.failed.items()}} if self.failed else {}
        if self.summary is not None:
            return {**self.summary, **codes}
        return {
            "scenario": self.scenario, "policy": self.policy, "complete": False, "jobs": len(self.jobs),
            "done": self.done, "failed": {job: reason.text for job, reason in self.failed.items()}, **codes,
            "metrics": {},
        }  # fmt: skip

    def program_of(self, job_id: int) -> str:
        """Return the program of a job's tasks; the scenario has one for serial and one for parallel jobs."""
        programs = (self.manifest.get("scenario") or {}).get("programs", {})
        job = self.job_by_id.get(job_id)
        if job is None:
            return "unknown program"
        return str(programs.get("parallel" if job.tasks > 1 else "serial", "parallel" if job.tasks > 1 else "serial"))


def verdict(run: RunFacts) -> tuple[str, bool]:
    """Return one line on how a run ended, and whether all jobs are done."""
    total, failed = len(run.jobs), len(run.failed)
    failures = f", {failed} failed" if failed else ""
    if run.summary is None:
        known = f"{run.done} of the {total} jobs that its journal knows were done{failures}"
        return f"Incomplete: the controller ended before it wrote a summary; {known}.", False
    if not run.complete:
        return f"Incomplete: the run ended before all of its jobs; {run.done} of {total} done{failures}.", False
    if failed or run.done < total:
        return f"Complete, but not all jobs succeeded: {run.done} of {total} jobs done{failures}.", False
    return f"Complete: all {total} jobs done, none failed." if total != 1 else "Complete: the one job was done.", True


def _manifest(path: Path) -> dict[str, Any]:
    """Return the manifest; {} if the run was killed before it wrote one."""
    if not path.exists():
        return {}
    manifest = read_json(path)
    if missing := [key for key in ("run", "policy", "scenario", "nodes") if key not in manifest]:
        raise UserError(f"{path}: no {', '.join(missing)}: expected the manifest of a run")
    if not isinstance(manifest["nodes"], dict):
        raise UserError(f"{path}: nodes: expected the facts of each node, by its name")
    return manifest


def read_facts(path: Path, *listeners: Listener) -> RunFacts:
    """Read a run directory; `listeners` are called with every event of the journal, in order.

    Without summary.json or jobs.csv, which a killed controller does not write, the jobs are those in the journal.
    Raises `UserError` for a folder that is no run directory, or a broken one.
    """
    if not path.is_dir():
        raise UserError(f"{path}: no such run directory")
    reschedulings: list[events.Rescheduling] = []
    remarks: list[Remark] = []

    def note(event: events.Known, _history: History) -> None:
        if isinstance(event, events.Rescheduling):
            reschedulings.append(event)
        elif isinstance(event, Remark):
            remarks.append(event)

    rows, manifest = _rows(path / "jobs.csv"), _manifest(path / "manifest.json")
    history = read_history(path / "events.jsonl", tuple(map(str, manifest.get("nodes", {}))), note, *listeners)
    jobs = [_job(row, history, path) for row in rows] if rows is not None else _jobs_of(history)
    return RunFacts(
        path=path,
        manifest=manifest,
        summary=read_json(path / "summary.json") if (path / "summary.json").exists() else None,
        jobs=tuple(jobs),
        reschedulings=tuple(reschedulings),
        remarks=tuple(remarks),
        history=history,
    )


def _rows(path: Path) -> list[dict[str, str]] | None:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror}") from error


def _job(row: Mapping[str, str], history: History, path: Path) -> JobRow:
    """Return a row of jobs.csv with numbers; columns that older versions lack are 0 or None."""
    values: dict[str, Any] = {}
    for column in JOB_COLUMNS:
        text = row.get(column)
        try:
            value = float(text) if text else None
        except ValueError:
            raise UserError(f"{path / 'jobs.csv'}: {column} = {text!r}: expected a number") from None
        values[column] = value if column in _MAY_LACK else int(value or 0) if column in _WHOLE else value or 0.0
    known = history.jobs.get(values["job_id"])
    return JobRow(**values, state="coming" if known is None else known.word)


def _jobs_of(history: History) -> list[JobRow]:
    """Return the jobs in the journal: all jobs of the trace, or the submitted ones if it has no trace."""
    return [_row_of(history.jobs[job_id]) for job_id in sorted(history.jobs)]


def _row_of(job: JobHistory) -> JobRow:
    """Return the row of jobs.csv for a job in the journal, without the stretch; costs not measured yet are 0."""
    return JobRow(
        job_id=job.job,
        submit_time_s=job.submit_trace_s or 0.0,
        tasks=job.tasks,
        cpu_need_frac=job.cpu_need_frac,
        mem_req_frac=job.mem_req_frac,
        run_time_s=job.run_time_s,
        start_time_s=job.start_trace_s,
        end_time_s=job.end_trace_s,
        stretch=None,
        virtual_time_s=job.virtual_time_s,
        preemptions=job.preemptions,
        migrations=job.migrations,
        penalty_s=sum(each.measured.penalty_s for each in job.reschedulings if each.measured is not None),
        bytes_moved=sum(each.bytes_moved for each in job.reschedulings),
        live_migrations=sum(each.mechanism == LIVE for each in job.reschedulings),
        state=job.word,
    )
