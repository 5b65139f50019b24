"""The quarantine rule, which detects disturbed runs; docs/compare.md explains it.

The rule uses the records of a run and no simulation, so that no run is left out because its results disagree.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import polars as pl

from testbed.bus.drivers import recorded_traits
from testbed.measure.frames import load_points
from testbed.run import events
from testbed.study.compare.core_speeds import followed_speeds, guest_speed_gap
from testbed.study.compare.decisions import PERIODIC, SUBMISSION
from testbed.study.compare.live import LiveRun
from testbed.study.compare.load import core_speed, foreign_load, owed_frac, sampling

_MEASUREMENTS = ("node", "guest", "cap", "cap_drift", "controller")
_NOT_JUDGED = float("inf")
_OF_GUESTS = ("cap", "save", "migrate")  # operations on running guests, which may end a moment before
_END_NEAR_S = 1.0  # by which the report of a guest's end may come before or after a command to this guest


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the quarantine rule: a run with a finding beyond one of them is disturbed.

    Fractions are of 1, times are wall seconds.
    """

    owed_frac: float = 0.05  # missing fraction of the CPU time under the caps of jobs that use all of it
    core_speed_frac: float = 0.05  # relative difference between the speed of cores and that in the simulation
    missing_samples_frac: float = 0.10
    sample_gap_s: float = 5.0  # the greater one of this limit and the next one applies
    sample_gap_samples: float = 2.0  # in sampling periods of the agents
    loop_late_s: float = 0.25
    clock_step_s: float = 0.5
    blind_s: float = 0.0  # without a controller: guests continue to work, while trace time stands still


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding on a run and its limit; `value` is None if the run did not record it, and `why` has the reason."""

    name: str
    what: str
    value: float | None
    limit: float
    unit: str
    at_least: bool = False  # the limit is a lower bound, not an upper one
    fatal: bool = False  # beyond the limit the run cannot be compared at all
    why: str = ""

    @property
    def disturbed(self) -> bool:
        """Whether the value is beyond the limit."""
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
    """The result of the quarantine rule for one run."""

    findings: tuple[Finding, ...]

    @property
    def reasons(self) -> tuple[Finding, ...]:
        """The findings for which the run is quarantined; empty for an undisturbed run."""
        return tuple(finding for finding in self.findings if finding.disturbed)

    @property
    def usable(self) -> bool:
        """Whether all jobs are done, so that the run can be compared at all."""
        return not any(finding.fatal for finding in self.reasons)


def examine(run: LiveRun, limits: Limits | None = None) -> Health:
    """Apply the quarantine rule to a run. Raises `UserError` if its points cannot be read."""
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
    began_s = {event.action: event.t_s for event in run.journal
               if isinstance(event, events.Intent) and event.verb in _OF_GUESTS}  # fmt: skip
    ends_s: dict[int, list[float]] = defaultdict(list)
    for event in run.journal:
        if isinstance(event, events.Guest) and event.event in ("ended", "done"):
            ends_s[event.job].append(event.t_s)

    def counts(event: events.Outcome | events.Retry) -> bool:
        """Whether the failure of an attempt counts: not if it was to change running guests of which one just ended."""
        if event.action not in began_s:
            return True
        first_s, last_s = began_s[event.action] - _END_NEAR_S, event.t_s + _END_NEAR_S
        return not any(first_s <= end_s <= last_s for end_s in ends_s[event.job])

    retries = sum(isinstance(event, events.Retry) and counts(event) for event in run.journal)
    failed = sum(isinstance(event, events.Outcome) and not event.ok and counts(event) for event in run.journal)
    yield Finding("nodes_lost", "times that a node went offline", float(lost), 0, "")
    yield Finding("retries", "operations tried again", float(retries), 0, "")
    yield Finding("failures", "operations that failed", float(failed), 0, "")
    doubts = float(kinds[events.Doubt]) if kinds[events.Results] else None  # only such runs compare work with CPU time
    yield Finding("doubts", "tasks that were reported done sooner than possible",
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
    yield Finding("dropped", "samples that agents discarded", float(dropped), 0, "")
    yield Finding("drift", "caps that another program had changed", float(points["cap_drift"].height), 0, "")
    if all(recorded_traits(facts).simulated for facts in run.facts.manifest.get("nodes", {}).values()):
        return  # nodes of a dry run have no CPU, so the load of the machine does not matter
    yield from _cpu(run, points, limits)


def _cpu(run: LiveRun, points: Mapping[str, pl.DataFrame], limits: Limits) -> Iterator[Finding]:
    """Yield findings that no simulation can model: CPU time that guests did not get, and speeds that probes missed.

    Foreign load alone is no reason for quarantine; the CPU time that guests lose by it is.
    """
    load = foreign_load(run, points["node"], points["guest"], points["controller"])
    why = "no samples of the nodes' CPU"
    machine = load.machine or "a machine"
    yield Finding("foreign_mean", f"foreign CPU load, mean of {machine}", load.mean_frac, _NOT_JUDGED, "", why=why)
    yield Finding("foreign_p95", "foreign CPU load, 95th percentile of seconds", load.p95_frac, _NOT_JUDGED, "",
                  why=why)  # fmt: skip
    owed = owed_frac(run, points["cap"])
    yield Finding("owed", "CPU time that serial jobs did not get, as a fraction of that under their caps", owed,
                  limits.owed_frac, "", why="no window of constant cap of a job that uses all CPU time")  # fmt: skip
    if run.facts.work_is_cpu_time:
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
    yield Finding("core_speed", "speed of serial jobs' guests, compared with the probed speed of their cores",
                  gap, limits.core_speed_frac, "", why="no guest of a serial job lived for long enough")  # fmt: skip


def _controller(run: LiveRun, limits: Limits) -> Iterator[Finding]:
    lateness = list(_lateness_s(run))
    yield Finding("late", "longest delay of a decision that was due at a time",
                  max(lateness, default=None), limits.loop_late_s, "s", why="there was no such decision")  # fmt: skip
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
    """Yield the delay of each decision that was due at a time, in wall seconds: the controller's loop was late."""
    submit_s = {job.job_id: job.submit_time_s for job in run.facts.jobs}
    for record in run.decisions:
        for kind, number in record.triggers:
            if kind == SUBMISSION and number in submit_s:
                yield (record.time_s - submit_s[number]) / run.facts.time_scale
            elif kind == PERIODIC and run.period_s is not None:
                yield (record.time_s - number * run.period_s) / run.facts.time_scale
