"""Preparation of the jobs of a run: their kinds, the dedicated rate of each kind, and the guests of each job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from testbed.bus.messages import NodeFacts
from testbed.control.dedicated import PROBED_QUANTILE, Shape, measure, representatives
from testbed.control.lost_run import LostRun
from testbed.control.manifest import by_name
from testbed.control.recorder import Recorder
from testbed.control.serving import Serving
from testbed.control.snapshot import Display
from testbed.control.work_rates import MeasuredRates
from testbed.lab.core_speed import measure_core
from testbed.lab.fleet import Fleet
from testbed.lab.guests import PreparedJob, cpu_ns_of_unit, prepare_jobs
from testbed.lab.lab import Lab, addresses_of
from testbed.needs.estimator import NEED_WINDOW_S
from testbed.run import events
from testbed.scenario.schema import Scenario
from testbed.scheduling.policies.discovering import watches_needs
from testbed.scheduling.policies.view import Policy, SharingPolicy
from testbed.scheduling.policies.within import DividingPolicy
from testbed.scheduling.simulation.overheads_parser import CHEAPER
from testbed.scheduling.workload.jobs import Job


class Preparation:
    """Prepares the `jobs` of a run, and the jobs that users submit during a run that is `serving`.

    `measured` are the rates measured before the run; None if the scenario gives them. A resumed run measures no rates,
    but takes those of the `lost` controller.
    """

    def __init__(
        self, scenario: Scenario, policy: Policy, jobs: Sequence[Job], run_tag: str, serving: Serving | None,
        lost: LostRun | None,
    ) -> None:  # fmt: skip
        self._scenario = scenario
        self._policy = policy
        self._jobs = jobs
        self._run_tag = run_tag
        self._serving = serving
        self.measured: MeasuredRates | None = None if lost is None else lost.measured
        # the addresses of jobs come first, so that a resumed run, which measures no rates, assigns the same addresses
        self._more_addresses = addresses_of(scenario)
        self._addresses = list(islice(self._more_addresses, sum(job.tasks for job in jobs)))
        if serving is not None:
            self._addresses = serving.addresses()
            if self.measured is not None:
                self.measured = replace(self.measured, by_job=serving.by_job)

    def kinds(self, nodes: int) -> dict[Shape, Job]:
        """Return one job of each kind of the run, or of each kind that users may submit to this number of nodes."""
        return representatives(self._jobs, nodes) if self._serving is None else self._serving.representatives()

    async def rates(
        self, fleet: Fleet, kinds: Mapping[Shape, Job], recorder: Recorder, display: Display
    ) -> dict[Shape, float]:
        """Return the work units per second and core of each kind, measured unless the scenario gives them.

        A dry run always measures, because its nodes have their own speed.
        """
        given = self._scenario.programs.units_per_core_s
        if given is not None and not recorder.directory.is_dry:
            rates = dict.fromkeys(kinds, given)
        else:
            display.line(0.0, f"measuring how fast each kind of job works alone: {'; '.join(map(str, kinds))}")
            rates = await self._measure(fleet, kinds, recorder)
        recorder.calibration(by_name(rates))
        return rates

    async def _measure(self, fleet: Fleet, kinds: Mapping[Shape, Job], recorder: Recorder) -> dict[Shape, float]:
        core_units_per_s = await measure_core(fleet, self._scenario.deadlines.command_s)
        lab = Lab(self._scenario, fleet, self._run_tag, core_units_per_s, self._more_addresses)
        rates, probed_units_per_s = await measure(lab, kinds)
        by_job: Mapping[int, float] = {job.job_id: rates[Shape.of(job)] for job in self._jobs}
        if self._serving is not None:
            by_job = self._serving.by_job
        self.measured = MeasuredRates(core_units_per_s, by_job, probed_units_per_s or 0.0)
        recorder.journal(
            events.Calibration(
                *recorder.times(), core_units_per_s=core_units_per_s, probed_units_per_s=probed_units_per_s,
                probed_quantile=PROBED_QUANTILE, units_per_core_s=by_name(rates),
            )
        )  # fmt: skip
        return rates

    def all(self, fact: NodeFacts, rates: Mapping[Shape, float]) -> list[PreparedJob]:
        """Return the jobs with their guests; all nodes are alike."""
        return self._prepare(self._jobs, fact, rates, iter(self._addresses))

    def one(
        self, fact: NodeFacts, rates: Mapping[Shape, float], job: Job, addresses: Iterator[str]
    ) -> PreparedJob:  # fmt: skip
        """Return a job that a user submits, with its guests."""
        (prepared,) = self._prepare([job], fact, rates, addresses)
        return prepared

    def _prepare(
        self, jobs: Sequence[Job], fact: NodeFacts, rates: Mapping[Shape, float], addresses: Iterator[str]
    ) -> list[PreparedJob]:
        cpu_ns = cpu_ns_of_unit(self._scenario.programs, fact, self._core_units_per_s())
        watch_s = NEED_WINDOW_S if watches_needs(self._policy) else 0.0
        return prepare_jobs(
            jobs, self._scenario, self._run_tag, fact.cpus, fact.memory_mib, lambda job: rates[Shape.of(job)],
            addresses, cpu_ns_per_unit=cpu_ns, shared=isinstance(self._policy, SharingPolicy),
            waits=isinstance(self._policy, DividingPolicy) and self._policy.within == "distributed",
            watch_s=watch_s, writes=self._scenario.migration.mechanism == CHEAPER,
        )  # fmt: skip

    def _core_units_per_s(self) -> float:
        """Return the core speed that converts work to CPU time: the measured one, else that of the scenario."""
        given = self._scenario.programs.units_per_core_s
        measured = 0.0 if self.measured is None else self.measured.core
        return measured or given or 1.0
