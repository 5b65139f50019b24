"""Whether a job slows down in proportion to its yield, as the papers assume [RR 2.2]."""

from __future__ import annotations

import random

from testbed.calibration.bench import Bench
from testbed.calibration.experiment import Condition, LabFacts, Observation
from testbed.calibration.experiments.felt import first_progress_s
from testbed.calibration.progress_rate import SETTLE_S, WINDOW_S, measure_rate
from testbed.calibration.room import guest_mib, need_cores, why_no_caps

YIELDS = (0.1, 0.25, 0.5, 0.75, 1.0)
_SERIAL_ITERATION_S = 0.005
_PARALLEL_ITERATION_S = 0.02
_TALKING_ITERATION_S = 0.005
_TALKING_BYTES = 65536
_MOST_TASKS = 4
# iterations in a window, at least: guests of their own kernel tell how far they are at any time, in whole iterations;
# others tell it at the end of one
_WHOLE_ITERATIONS = 20
_ITERATIONS = 10


class Proportionality:
    """One fresh job a trial, taken through all yields in a random order, between two looks at its dedicated rate."""

    name = "proportionality"
    about = "rate of progress against yield, of serial and of MPI jobs"

    def why_not(self, lab: LabFacts) -> str:
        """See `Experiment.why_not`."""
        return why_no_caps(lab)

    def conditions(self, lab: LabFacts, *, quick: bool) -> list[Observation]:
        """A serial job; MPI jobs with a task a node, that compute most of the time, or exchange many messages.

        Topologies are told apart from three nodes on: two ranks are neighbours in all of them.
        """
        tasks = min(_MOST_TASKS, len(lab.facts))
        found = [_condition("serial", 1, "none", 0, _SERIAL_ITERATION_S)]
        if tasks < 2 or not lab.able("mpi"):
            return found
        calm = (lab.scenario.programs.message_bytes, _PARALLEL_ITERATION_S)
        found.append(_condition("parallel", tasks, "ring", *calm))
        if not quick:
            found.append(_condition("parallel", tasks, "ring", _TALKING_BYTES, _TALKING_ITERATION_S))
            if tasks > 2:
                found.append(_condition("parallel", tasks, "all-to-all", *calm))
                found.append(_condition("parallel", tasks, "all-to-all", _TALKING_BYTES, _TALKING_ITERATION_S))
        return found

    def expected_s(self, condition: Condition, lab: LabFacts) -> float:
        """See `Experiment.expected_s`."""
        start_s = first_progress_s(lab) * (1.0 if condition["kind"] == "serial" else 1.5)
        looks_s = [_window_s(lab, float(condition["iteration_s"]), at) for at in (1.0, *YIELDS, 1.0)]
        return start_s + sum(looks_s) + len(looks_s) * (SETTLE_S + 0.3)

    async def run(self, bench: Bench, condition: Condition) -> list[Observation]:
        """Return one observation a yield. All tasks have the same cap; the slowest one's rate counts.

        `dedicated_units_per_s` is the mean of the rates at yield 1 before and after all others, in the same job;
        `drift_frac` is how much greater the second was than the first. Yield 1 is also measured in between, as the
        others are: its `relative_rate` tells what this experiment can resolve. `used_cores` is of the slowest task.
        """
        lab = LabFacts(bench.scenario, bench.facts)
        serial = condition["kind"] == "serial"
        tasks, iteration_s = int(condition["tasks"]), float(condition["iteration_s"])
        cores = need_cores(lab, nodes=tasks)
        job = (
            bench.specimen(memory_mib=guest_mib(lab), cpu_cores=cores, program="eatcpu", iteration_s=iteration_s)
            if serial
            else bench.specimen(
                memory_mib=guest_mib(lab), cpu_cores=cores, nodes=tuple(range(tasks)), program="patterns",
                topology=str(condition["topology"]), message_bytes=int(condition["message_bytes"]),
                iteration_s=iteration_s,
            )
        )  # fmt: skip
        order = list(YIELDS)
        random.Random(f"{sorted(condition.items())}/{job.specs[0].job}").shuffle(order)  # noqa: S311  # no secret
        async with job:
            await job.start()
            looks = []
            for yield_frac in (1.0, *order, 1.0):
                await job.set_yield(yield_frac)
                looks.append((yield_frac, await measure_rate(bench, job, _window_s(lab, iteration_s, yield_frac))))
        before, after = looks[0][1].units_per_s, looks[-1][1].units_per_s
        dedicated = (before + after) / 2
        return [
            {
                "yield_frac": yield_frac,
                "units_per_s": rate.units_per_s,
                "dedicated_units_per_s": dedicated,
                "relative_rate": rate.units_per_s / dedicated,
                "used_cores": rate.used_cores,
                "need_cores": cores,
                "drift_frac": after / before - 1.0,
                "place": place,
            }
            for place, (yield_frac, rate) in enumerate(looks[1:-1])
        ]


def _condition(kind: str, tasks: int, topology: str, message_bytes: int, iteration_s: float) -> Observation:
    return {
        "kind": kind, "tasks": tasks, "topology": topology, "message_bytes": message_bytes, "iteration_s": iteration_s,
    }  # fmt: skip


def _window_s(lab: LabFacts, iteration_s: float, yield_frac: float) -> float:
    iterations = _WHOLE_ITERATIONS if lab.able("whole") else _ITERATIONS
    return max(WINDOW_S, iterations * iteration_s / yield_frac)


EXPERIMENT = Proportionality()
