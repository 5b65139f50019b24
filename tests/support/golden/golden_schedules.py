"""Simulated schedules of a trace and its lower bound, as golden figures."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from support.golden.golden_traces import GoldenTrace
from testbed.scheduling.bound.max_stretch import bound
from testbed.scheduling.policies.catalogue import BASELINES, EQUIPARTITION
from testbed.scheduling.policies.configuration import catalogue
from testbed.scheduling.policies.ipdps import RULES
from testbed.scheduling.simulation.compiling import NEVER
from testbed.scheduling.simulation.measures import measure
from testbed.scheduling.simulation.named import named
from testbed.scheduling.simulation.overheads import DEFAULT_NODE_MEMORY_GB, Overheads
from testbed.scheduling.simulation.run import SimulatedRun

WIDE_XGE = "XGE/PARALLEL=1"  # all nodes are its parallel partition: otherwise jobs that need all nodes never run
DFRS = "GreedyPM */per/OPT=MIN/MINVT=600"
POLICIES = ("FCFS", "EASY", DFRS, "/stretch-per/OPT=MAX/MINVT=600")
WEEK_POLICIES = ("EASY", DFRS, "DYNMCB8-ASAP-PER")
BATCH_POLICIES = ("FCFS", "EASY", "EASY/2011")
_PERIOD_S = 600.0


def bounds(trace: GoldenTrace) -> dict[str, float]:
    """Return the lower bounds on the maximum stretch, to the last digit.

    All sums of the search are loops of its own kernels, so the same code gives the same bits, as Python or compiled.
    """
    return {
        "theorem1": float(bound(trace.jobs, trace.nodes, compiling=False)),
        "fluid": float(bound(trace.jobs, trace.nodes, kind="fluid", compiling=False)),
    }


def schedules(
    trace: GoldenTrace, policies: Sequence[str], overheads: Overheads | None = None
) -> dict[str, dict[str, object]]:
    """Return the schedule of a trace under each policy: `schedule_figures` by the policy's name."""
    least = bounds(trace)["theorem1"]
    return {name: schedule_figures(_run(trace, name, overheads), least) for name in policies}


def every_policy(trace: GoldenTrace) -> dict[str, dict[str, object]]:
    """Return the digest of a trace's schedule and two measures under every policy that is no plug-in, by its name."""
    names = [*(WIDE_XGE if policy.name == "XGE" else policy.name for policy in BASELINES), EQUIPARTITION]
    names += [*RULES, *(configuration.name for configuration in catalogue())]
    found: dict[str, dict[str, object]] = {}
    for name in names:
        run = _run(trace, name, None)
        stretches = run.stretches()
        found[name] = {
            "starts_and_ends_sha256": _digest(run),
            "max_stretch": float(stretches.max()),
            "mean_stretch": float(stretches.mean()),
        }
    return found


def _run(trace: GoldenTrace, name: str, overheads: Overheads | None) -> SimulatedRun:
    """Simulate a trace; kernels run as plain Python, so the state of the cache of compiled code does not matter."""
    return named(name, _PERIOD_S).simulate(trace.jobs, trace.nodes, overheads, compiling=NEVER)


def _digest(run: SimulatedRun) -> str:
    times = zip(run.jobs, run.start_s.tolist(), run.end_s.tolist(), strict=True)
    text = "".join(f"{job.job_id} {start_s.hex()} {end_s.hex()}\n" for job, start_s, end_s in times)
    return hashlib.sha256(text.encode()).hexdigest()


def schedule_figures(run: SimulatedRun, least: float) -> dict[str, object]:
    """Return the digest of all starts and ends to the last bit, three jobs of them, and the measures.

    `least` is the lower bound on the maximum stretch. Times that a policy took to decide are left out.
    """
    stretches = run.stretches()
    shown = {"first": 0, "largest_stretch": int(np.argmax(stretches)), "last": len(run.jobs) - 1}
    return {
        "starts_and_ends_sha256": _digest(run),
        "jobs": {which: _job(run, row, float(stretches[row])) for which, row in shown.items()},
        "decisions": run.decisions,
        "preemptions": int(run.preemptions.sum()),
        "migrations": int(run.migrations.sum()),
        "penalty_s": float(run.penalty_s.sum()),
        "measures": {
            name: value
            for name, value in measure(run, least, DEFAULT_NODE_MEMORY_GB).as_dict().items()
            if not name.startswith("decide_")
        },
    }


def _job(run: SimulatedRun, row: int, stretch: float) -> dict[str, object]:
    return {
        "job_id": run.jobs[row].job_id, "start_s": float(run.start_s[row]), "end_s": float(run.end_s[row]),
        "stretch": stretch, "preemptions": int(run.preemptions[row]), "migrations": int(run.migrations[row]),
    }  # fmt: skip
