"""What a guest costs a program, with and without a cap: native, guest, capped guest, as in Figure 3 of [DPS]."""

from __future__ import annotations

from testbed.calibration.experiment import Condition, LabFacts, Observation, Value
from testbed.calibration.room import guest_mib, most_guests, need_cores, why_no_caps
from testbed.lab.lab import Lab
from testbed.lab.rates import WINDOW_S

_WINDOW_S = 1.5 * WINDOW_S
_SERIAL_ITERATION_S = 0.02
_PARALLEL_ITERATIONS_S = (0.005, 0.02, 0.08)  # the shorter, the more of the time goes into messages
_RANKS = 2  # of `patterns`, all on one node
_CAP_FRAC = 0.5


class Virtualisation:
    """The same work on the same cores: on the node itself, in guests, and in guests at half the cores."""

    name = "virtualisation"
    about = "rate of progress on the node itself, in guests, and in capped guests"

    def why_not(self, lab: LabFacts) -> str:
        """See `Experiment.why_not`."""
        return why_no_caps(lab) if lab.able("native") else "a node cannot run programs outside guests"

    def conditions(self, lab: LabFacts, *, quick: bool) -> list[Observation]:
        """Serial work, and with `quick` nothing else; MPI ranks that share a node, and talk more and more.

        `cap_frac` is in parts of what native tasks and guests without a further cap have: a core for each rank, or
        where a node has fewer, its part of them, by a cap in both cases.
        """
        programs = [("eatcpu", 1, _SERIAL_ITERATION_S)]
        if not quick and lab.able("mpi") and most_guests(lab) >= _RANKS:
            programs += [("patterns", _RANKS, iteration_s) for iteration_s in _PARALLEL_ITERATIONS_S]
        return [
            {"program": program, "where": where, "ranks": ranks, "iteration_s": iteration_s, "cap_frac": cap_frac}
            for program, ranks, iteration_s in programs
            for where, cap_frac in (("native", 1.0), ("guest", 1.0), ("capped-guest", _CAP_FRAC))
        ]

    def expected_s(self, condition: Condition, lab: LabFacts) -> float:
        """See `Experiment.expected_s`."""
        boots = condition["where"] != "native" and lab.able("whole")
        return _WINDOW_S + 1.5 + (6.0 if boots else 0.5) * int(condition["ranks"])

    async def run(self, bench: Lab, condition: Condition) -> list[Observation]:
        """Return one observation, of the slowest rank; `need_cores` is what a rank has without a further cap."""
        lab = LabFacts(bench.scenario, bench.facts)
        program, ranks = str(condition["program"]), int(condition["ranks"])
        iteration_s = float(condition["iteration_s"])
        cores = need_cores(lab, tasks=ranks)
        if condition["where"] == "native":
            run = await bench.native(
                0, program=program, ranks=ranks, seconds=_WINDOW_S, cap_cores=cores if cores < 1.0 else 0.0,
                iteration_s=iteration_s, cpu_cores=cores,
            )  # fmt: skip
            return [_observation(run.units / run.elapsed_s, run.units / run.cpu_s, cores)]
        async with bench.job(
            memory_mib=guest_mib(lab), cpu_cores=cores, nodes=(0,) * ranks, program=program, iteration_s=iteration_s
        ) as job:
            await job.start()
            await job.cap(float(condition["cap_frac"]))
            rate = await job.rate_and_use(_WINDOW_S)
        return [_observation(rate.units_per_s, rate.units_per_cpu_s, cores)]


def _observation(units_per_s: float, units_per_cpu_s: float, cores: float) -> dict[str, Value]:
    return {"units_per_s": units_per_s, "units_per_cpu_s": units_per_cpu_s, "need_cores": cores}


EXPERIMENT = Virtualisation()
