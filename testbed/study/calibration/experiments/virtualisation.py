"""The cost of a guest for a program, with and without a cap: native, guest, capped guest, as in Figure 3 of [DPS]."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from testbed.lab.lab import Lab
from testbed.lab.rates import WINDOW_S
from testbed.study.calibration.experiment import Experiment, LabFacts
from testbed.study.calibration.fits import Floats
from testbed.study.calibration.quantities import Column, Quantities, by_condition, column, number
from testbed.study.calibration.sizes import guest_mib, most_guests, need_cores, why_no_caps
from testbed.study.calibration.trials import Outcome
from testbed.study.calibration.values import Condition, Observation, Value
from testbed.study.report.calibration.data import Measured, Row, Series, count_words, groups, listed, percent, values_of
from testbed.study.report.calibration.panels import strip_chart
from testbed.study.report.page.style import Absent, Chart

_WINDOW_S = 1.5 * WINDOW_S
_SERIAL_ITERATION_S = 0.02
_PARALLEL_ITERATIONS_S = (0.005, 0.02, 0.08)  # shorter iterations spend more of their time on messages
_RANKS = 2  # ranks of `patterns`, all on one node
_CAP_FRAC = 0.5
_WHERE = (("native", "native", 0), ("guest", "guest", 1), ("capped-guest", "capped", 2))


class Virtualisation(Experiment):
    """The same work on the same cores: on the node itself, in guests, and in guests with a cap of half the cores."""

    name = "virtualisation"
    about = "rate of progress on the node itself, in guests, and in capped guests"
    section = "Progress"
    order = 130

    def why_not(self, lab: LabFacts) -> str:
        """See `Experiment.why_not`."""
        return why_no_caps(lab) if lab.able("native") else "a node cannot run programs outside guests"

    def conditions(self, lab: LabFacts, *, quick: bool) -> list[Observation]:
        """Return serial work and, without `quick`, MPI ranks that share a node with three lengths of iterations.

        `cap_frac` is relative to the cores of a native rank and of a guest without a further cap: one core per rank,
        or an equal part of the node's cores if it has fewer, enforced by a cap in both cases.
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

    async def trial(self, lab: Lab, condition: Condition) -> list[Observation]:
        """Return one observation, of the slowest rank; `need_cores` are the cores of a rank without a further cap."""
        facts = LabFacts(lab.scenario, lab.facts)
        program, ranks = str(condition["program"]), int(condition["ranks"])
        iteration_s = float(condition["iteration_s"])
        cores = need_cores(facts, tasks=ranks)
        if condition["where"] == "native":
            run = await lab.native(
                0, program=program, ranks=ranks, seconds=_WINDOW_S, cap_cores=cores if cores < 1.0 else 0.0,
                iteration_s=iteration_s, cpu_cores=cores,
            )  # fmt: skip
            return [_observation(run.units / run.elapsed_s, run.units / run.cpu_s, cores)]
        async with lab.job(
            memory_mib=guest_mib(facts), cpu_cores=cores, nodes=(0,) * ranks, program=program, iteration_s=iteration_s
        ) as job:
            await job.start()
            await job.cap(float(condition["cap_frac"]))
            rate = await job.rate_and_use(_WINDOW_S)
        return [_observation(rate.units_per_s, rate.units_per_cpu_s, cores)]

    def quantities(self, trials: Sequence[Outcome]) -> Quantities:
        """Return rates of guests relative to native ones, and of capped guests relative to their cap."""
        found = Quantities(trials)
        for condition, outcomes in by_condition(trials, "program", "ranks", "iteration_s"):
            groups_of = by_condition(outcomes, "where", "cap_frac")
            native, guest = (
                [outcome for kind, some in groups_of if kind.get("where") == where for outcome in some]
                for where in ("native", "guest")
            )
            for name, observed in (
                ("guest_relative_rate", "units_per_s"), ("guest_relative_efficiency", "units_per_cpu_s"),
            ):  # fmt: skip
                found.ratio(name, column(guest, observed), column(native, observed), condition)
            for kind, some in groups_of:
                cap_frac = number(kind, "cap_frac")
                if kind.get("where") == "capped-guest" and cap_frac:
                    own = column(some, "units_per_s")
                    over_cap = Column([value / cap_frac for value in own.values], own.trials)
                    under = {**condition, "cap_frac": cap_frac}
                    found.ratio("capped_rate_over_cap", over_cap, column(guest, "units_per_s"), under)
        return found

    def figures(self, measured: Measured) -> Sequence[Chart | Absent]:
        """Return a strip chart of native, guest and capped rates of programs, relative to native [DPS Figure 3]."""
        name, title = "calibration_virtualisation", "Virtualisation: native, guest, capped guest"
        rows = measured.rows("units_per_s")
        if not rows:
            return [measured.absent(name, title)]
        series: list[Series] = []
        against = []
        for (program, ranks, iteration_s), own in groups(rows, "program", "ranks", "iteration_s").items():
            called = f"{ranks} {program}, {1000.0 * float(iteration_s):g} ms," if ranks != 1 else str(program)
            base = next((some for where, *_ in _WHERE if (some := [r for r in own if r.at("where") == (where,)])), own)
            unit = float(np.median(_uncapped(base)))
            against.append(f"{called}: 100 % is {unit:,.4g} work units/s, {base[0].values.get('where')}")
            for where, label, mark in _WHERE:
                some = [row for row in own if row.at("where") == (where,)]
                for (cap,), same in groups(some, "cap_frac").items():
                    words = f"{label} {percent(cap)}" if where == "capped-guest" else label
                    percents = (100.0 * _uncapped(same) / unit).tolist()
                    kept = [Row(row.trial, {"relative": value}) for row, value in zip(same, percents, strict=True)]
                    series.append(Series(f"{called} {words}", kept, "relative", mark))
        words = listed(series, "%")
        caption = (
            "Work units per wall second of the same program outside and inside a guest, relative to the median "
            "outside; rates of capped guests are divided by their cap. The experiment of [DPS] Figure 3. One dot per "
            "trial, with the median and its 95 % interval over trials. "
            f"{words}. {'; '.join(against)}. {count_words(rows)}."
        )
        return [strip_chart(name, title, caption, words, series, "rate / cap (% of native)", around=100.0)]


def _observation(units_per_s: float, units_per_cpu_s: float, cores: float) -> dict[str, Value]:
    return {"units_per_s": units_per_s, "units_per_cpu_s": units_per_cpu_s, "need_cores": cores}


def _uncapped(rows: Sequence[Row]) -> Floats:
    """Return work units per second (n,), divided by the cap for capped guests."""
    capped = [row.number("cap_frac") or 1.0 if row.at("where") == ("capped-guest",) else 1.0 for row in rows]
    return np.asarray(values_of(rows, "units_per_s") / np.array(capped))
