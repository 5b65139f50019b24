"""The written rule that says which runs were disturbed; docs/compare.md explains it.

The rule reads the records of a run and no simulation: a run must not be left out because it disagrees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import polars as pl

from testbed.bus.drivers import recorded_traits
from testbed.measure.frames import load_points
from testbed.run import events
from testbed.study.compare.core_speeds import followed_speeds, guest_speed_gap
from testbed.study.compare.decisions import PERIODIC, SUBMISSION
from testbed.study.compare.live import LiveRun, work_is_cpu_time
from testbed.study.compare.load import core_speed, foreign_load, owed_frac, sampling

_MEASUREMENTS = ("node", "guest", "cap", "cap_drift", "controller")
_NOT_JUDGED = float("inf")


@dataclass(frozen=True, slots=True)
class Limits:
    """Beyond these a run is disturbed. Shares are of 1, wall seconds."""

    owed_frac: float = 0.05  # of the CPU time under their caps, that jobs which use all of it did not get
    core_speed_frac: float = 0.05  # by which cores may be faster or slower than the simulation takes them to be
    missing_samples_frac: float = 0.10
    sample_gap_s: float = 5.0  # or this:
    sample_gap_samples: float = 2.0  # where agents sample so seldom that it is longer
    loop_late_s: float = 0.25
    clock_step_s: float = 0.5
    blind_s: float = 0.0  # without a controller: guests then work on, and trace time does not


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact of a run against its limit; `value` is None where the run did not record it, and `why` says so."""

    name: str
    what: str
    value: float | None
    limit: float
    unit: str
    at_least: bool = False  # the limit is the least that is well, not the most
    fatal: bool = False  # without it there is nothing to compare
    why: str = ""

    @property
    def disturbed(self) -> bool:
        """Whether it is beyond the limit."""
        if self.value is None:
            return False
        return self.value < self.limit if self.at_least else self.value > self.limit

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.what}: not recorded ({self.why})"
        unit = f" {self.unit}" if self.unit else ""
        limit = "not judged" if self.limit == _NOT_JUDGED else f"limit {self.limit:g}{unit}"
        return f"{self.what}: {self.value:.4g}{unit}, {limit}"


@dataclass(frozen=True, slots=True)
class Health:
    """The result of the rule for one run."""

    findings: tuple[Finding, ...]

    @property
    def reasons(self) -> tuple[Finding, ...]:
        """Why the run is quarantined; none if it is not."""
        return tuple(finding for finding in self.findings if finding.disturbed)

    @property
    def usable(self) -> bool:
        """Whether every job ended well, so that there is something to compare at all."""
        return not any(finding.fatal for finding in self.reasons)


def examine(run: LiveRun, limits: Limits | None = None) -> Health:
    """Apply the rule to a run. Raises `UserError` if its points cannot be read."""
    limits = limits or Limits()
    findings = [*_ended(run), *_operations(run), *_machines(run, limits), *_controller(run, limits)]
    return Health(tuple(findings))


def _ended(run: LiveRun) -> Iterator[Finding]:
    unended = sum(job.end_time_s is None or job.state != "done" for job in run.facts.jobs)
    unended = max(unended, int(not run.facts.complete))
    yield Finding("jobs", "jobs that failed or did not end", float(unended), 0, "", fatal=True)


def _operations(run: LiveRun) -> Iterator[Finding]:
    kinds = Counter(map(type, run.journal))
    lost = sum(isinstance(event, events.Node) and not event.online for event in run.journal)
    failed = sum(isinstance(event, events.Outcome) and not event.ok for event in run.journal)
    yield Finding("nodes_lost", "times that a node went offline", float(lost), 0, "")
    yield Finding("retries", "operations that were tried again", float(kinds[events.Retry]), 0, "")
    yield Finding("failures", "operations that failed", float(failed), 0, "")
    doubts = float(kinds[events.Doubt]) if kinds[events.Results] else None  # runs that hold work against CPU time
    yield Finding("doubts", "tasks that were told to be done sooner than can be",
                  doubts, 0, "", why="the journal has no entry `results`")  # fmt: skip


def _machines(run: LiveRun, limits: Limits) -> Iterator[Finding]:
    points = load_points(run.facts.path, _MEASUREMENTS)
    samples = sampling(run, points["node"])
    yield Finding("restarts", "restarts of an agent", float(samples.restarts), 0, "")
    yield Finding("missing", "samples of a node that are missing", samples.missing_frac,
                  limits.missing_samples_frac, "", why="no samples")  # fmt: skip
    longest_gap_s = max(limits.sample_gap_s, limits.sample_gap_samples * samples.every_s)
    yield Finding("gap", "longest time without a sample of a node", samples.longest_gap_s, longest_gap_s, "s",
                  why="no samples")  # fmt: skip
    dropped = sum(event.dropped for event in run.journal if isinstance(event, events.Telemetry))
    yield Finding("dropped", "samples that agents gave up", float(dropped), 0, "")
    yield Finding("drift", "caps that somebody else had changed", float(points["cap_drift"].height), 0, "")
    if all(recorded_traits(facts).simulated for facts in run.facts.manifest.get("nodes", {}).values()):
        return  # the load of the machine does not matter
    yield from _cpu(run, points, limits)


def _cpu(run: LiveRun, points: Mapping[str, pl.DataFrame], limits: Limits) -> Iterator[Finding]:
    """Judge what no simulation can follow: CPU time that guests did not get, and speeds that no probe told.

    The load of others is no reason by itself: what it takes from guests is.
    """
    load = foreign_load(run, points["node"], points["guest"], points["controller"])
    why = "no samples of the nodes' CPU"
    machine = load.machine or "a machine"
    yield Finding("foreign_mean", f"foreign CPU load, mean of {machine}", load.mean_frac, _NOT_JUDGED, "", why=why)
    yield Finding("foreign_p95", "foreign CPU load, 95th percentile of seconds", load.p95_frac, _NOT_JUDGED, "",
                  why=why)  # fmt: skip
    owed = owed_frac(run, points["cap"])
    yield Finding("owed", "CPU time that serial jobs did not get, of that under their caps", owed, limits.owed_frac,
                  "", why="no window of constant cap of a job that uses all CPU time")  # fmt: skip
    if work_is_cpu_time(run.facts):
        return
    speeds = followed_speeds(run, points["node"])
    if speeds is None:
        speed = core_speed(run, points["node"])
        yield Finding(
            "core_speed", "change of the cores' speed since dedicated rates were measured",
            None if speed is None else abs(speed - 1.0), limits.core_speed_frac, "", why="no probes",
        )  # fmt: skip
        return
    gap = guest_speed_gap(run, points["guest"], speeds)
    yield Finding("core_speed", "speed of serial jobs' guests beside what probes told of their cores, mean difference",
                  gap, limits.core_speed_frac, "", why="no guest of a serial job lived for long enough")  # fmt: skip


def _controller(run: LiveRun, limits: Limits) -> Iterator[Finding]:
    lateness = list(_lateness_s(run))
    yield Finding("late", "longest delay of a decision that was due at a time",
                  max(lateness, default=None), limits.loop_late_s, "s", why="there was none")  # fmt: skip
    if orders := sum(isinstance(event, events.Order) for event in run.journal):
        yield Finding("orders", "orders of the operator: pauses, drained nodes", orders, 0, "")
    if run.facts.history.resumes:
        yield Finding("without_controller", "time without a controller", run.facts.blind_s, limits.blind_s, "s")
    clock = next((event for event in run.journal if isinstance(event, events.Clock)), None)
    step_s = None
    if clock is not None and run.facts.anchor_ns is not None:
        step_s = abs((clock.unix_ns - run.facts.anchor_ns) / 1e9 - clock.t_s)
    yield Finding("clock", "step of the controller's wall clock", step_s, limits.clock_step_s, "s",
                  why="the journal has no entry `clock`; all durations are by monotonic clocks")  # fmt: skip


def _lateness_s(run: LiveRun) -> Iterator[float]:
    """Yield by how many wall seconds the controller's decisions were late: its loop was held up."""
    submit_s = {job.job_id: job.submit_time_s for job in run.facts.jobs}
    for record in run.decisions:
        for kind, number in record.triggers:
            if kind == SUBMISSION and number in submit_s:
                yield (record.time_s - submit_s[number]) / run.facts.time_scale
            elif kind == PERIODIC and run.period_s is not None:
                yield (record.time_s - number * run.period_s) / run.facts.time_scale
