"""The manifest of a run, and the jobs of its trace in the form of the journal."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping

import msgspec

from testbed import __version__
from testbed.control.dedicated import Shape
from testbed.control.recorder import Recorder
from testbed.lab.fleet import Fleet
from testbed.lab.guests import PreparedJob
from testbed.measure.provenance import digest_of, packages, source
from testbed.run import events
from testbed.scenario.schema import Scenario
from testbed.scenario.workload_tables import WorkMeasure
from testbed.scheduling.policies.view import Policy
from testbed.scheduling.workload.jobs import Job


def manifest_of(
    run: str, run_tag: str, scenario: Scenario, policy: Policy, fleet: Fleet, rates: Mapping[Shape, float],
    recorder: Recorder, jobs: Iterable[Job], work: WorkMeasure,
) -> dict[str, object]:  # fmt: skip
    """Return the manifest of a run whose replay begins now; `work` is the measure of the work of its jobs."""
    return {
        "run": run,
        "run_tag": run_tag,
        "policy": policy.name,
        "period_s": policy.period_s,
        "seed": scenario.seed,
        "scenario": scenario.model_dump(mode="json"),
        "source": source(),
        "trace_sha256": digest_of(jobs),
        "versions": {"testbed": __version__, "python": platform.python_version(), **packages()},
        "controller": {"kernel": platform.release(), "cores": os.cpu_count()},
        "nodes": {node.name: msgspec.to_builtins(node.facts) for node in fleet.nodes},
        "work": work,
        "units_per_core_s": by_name(rates),
        "clocks": {
            "anchor_unix_ns": recorder.anchor_ns,
            "replay_begin_s": recorder.now_s(),
            "time_scale": scenario.time_scale,
            "note": "t_s counts from the anchor; trace second 0 is at replay_begin_s",
        },
    }


def trace_job(prepared: PreparedJob) -> events.TraceJob:
    """Return a job of the trace in the form of the journal, which is a resumed run's only list of jobs."""
    job, spec = prepared.job, prepared.specs[0]
    return events.TraceJob(
        job=job.job_id,
        submit_time_s=job.submit_time_s,
        tasks=job.tasks,
        cpu_need_frac=job.cpu_need_frac,
        mem_req_frac=job.mem_req_frac,
        run_time_s=job.run_time_s,
        memory_mib=spec.memory_mib,
        cpu_cores=spec.cpu_cores,
        estimate_s=job.estimate_s,
        urgent=job.urgent,
        program=job.program,
        weight=job.weight,
        least_yield_frac=job.least_yield_frac,
        true_need_frac=job.true_need_frac,
    )


def job_of(told: events.TraceJob) -> Job:
    """Return a job from its form in the journal; the inverse of `trace_job`."""
    return Job(
        job_id=told.job, submit_time_s=told.submit_time_s, tasks=told.tasks, cpu_need_frac=told.cpu_need_frac,
        mem_req_frac=told.mem_req_frac, run_time_s=told.run_time_s, estimate_s=told.estimate_s, urgent=told.urgent,
        program=told.program, weight=told.weight, least_yield_frac=told.least_yield_frac,
        true_need_frac=told.true_need_frac,
    )  # fmt: skip


def by_name(rates: Mapping[Shape, float]) -> dict[str, float]:
    """Return rates by the names of their shapes."""
    return {str(shape): rate for shape, rate in rates.items()}
