"""The accuracy of shares: CPU time that guests get under contention, relative to the fraction of their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

import msgspec
import numpy as np

from testbed.bus.drivers import traits_in
from testbed.errors import RunError
from testbed.lab.job import LabJob
from testbed.lab.lab import Lab
from testbed.study.calibration.assumptions import Deviation, bounds_words, judged, relative
from testbed.study.calibration.experiment import Experiment, LabFacts
from testbed.study.calibration.experiments.felt import first_progress_s, group, lab_of, lacks, together
from testbed.study.calibration.model import Assumption, condition_words
from testbed.study.calibration.quantities import Quantities, by_condition, column
from testbed.study.calibration.sizes import LEAST_CORES, guest_mib, most_guests
from testbed.study.calibration.trials import Outcome
from testbed.study.calibration.values import Condition, Observation
from testbed.study.calibration.watched import window_rates
from testbed.study.report.calibration.data import Measured, Series, count_words, groups, listed
from testbed.study.report.calibration.panels import strip_chart
from testbed.study.report.page.style import Absent, Chart

WEIGHTS = ("1:1", "1:2", "1:1:1", "1:2:3", "1:1:1:1", "1:2:3:4")
_QUICK = ("1:2", "1:2:3", "1:2:3:4")
_LONG_S, _QUICK_S = 10.0, 4.0
_WINDOW_S = 1.0  # window of errors: the least period of an exchange of shares
_EVERY_S = 0.05
_SETTLE_S = 0.5
_ITERATION_S = 0.05
_NODE = 0
_ROUNDING_CORES = 1e-9


class ShareAccuracy(Experiment):
    """Guests with shares of one node, each with demand for all of its CPU time, watched for several seconds."""

    name = "share-accuracy"
    about = "CPU time that guests get under contention over what their weights promise, with 2, 3 and 4 guests"
    section = "Shares"
    order = 105

    def why_not(self, lab: LabFacts) -> str:
        """See `Experiment.why_not`."""
        if why := lacks(lab, "shares") or _why_beside(lab):
            return why
        if lab.cpus < LEAST_CORES:
            return f"a node has {lab.cpus:g} cores for guests: expected {LEAST_CORES:g} at least"
        if most_guests(lab) == 1:
            return f"a node has {lab.memory_mib} MiB: expected room for two guests of {guest_mib(lab)} MiB"
        return ""

    def conditions(self, lab: LabFacts, *, quick: bool) -> list[Observation]:
        """Return equal and unequal weights of as many guests as fit; `driver` distinguishes results of several labs."""
        return [
            {"driver": lab.facts[_NODE].driver, "weights": weights, "seconds": _QUICK_S if quick else _LONG_S}
            for weights in (_QUICK if quick else WEIGHTS)
            if len(_parts(weights)) <= most_guests(lab)
        ]

    def expected_s(self, condition: Condition, lab: LabFacts) -> float:
        """See `Experiment.expected_s`."""
        guests = len(_parts(str(condition["weights"])))
        return first_progress_s(lab) * guests + _SETTLE_S + float(condition["seconds"])

    async def trial(self, lab: Lab, condition: Condition) -> list[Observation]:
        """Return one observation per guest, in the order of the weights.

        `got_ratio` is the guest's fraction of the CPU time of all guests, over the fraction that its weight promises:
        1 is exact, also on a busy machine, which takes from all guests alike. `cores_ratio` is the guest's CPU time
        over its share in cores, which other load decreases. `p95_error_frac` is the 95th percentile of the absolute
        error of `got_ratio` over windows of one second. `read_back_cores` is the share that the node read back.
        """
        parts = _parts(str(condition["weights"]))
        facts = lab_of(lab)
        cpus = facts.facts[_NODE].cpus
        shares = [cpus * part / sum(parts) for part in parts]
        jobs = [_guest(lab, facts, cpus, share) for share in shares]
        names = [job.name for job in jobs]
        async with group(jobs):
            await together([job.start() for job in jobs])
            found = {guest.guest: guest.share_cores for guest in await lab.guests_on(_NODE)}
            watched = await lab.watch(_NODE, names, _EVERY_S, _SETTLE_S + float(condition["seconds"]))
        first = next((index for index, t_s in enumerate(watched.t_s) if t_s >= _SETTLE_S), len(watched.t_s))
        t_s = watched.t_s[first:]
        if len(t_s) < 2:
            raise RunError(f"{len(t_s)} samples in {condition['seconds']} s: the agent could not sample in time")
        lasted_s = t_s[-1] - t_s[0]
        used = [(watched.cpu_s[name][-1] - watched.cpu_s[name][first]) / lasted_s for name in names]
        if not sum(used) > 0.0:
            raise RunError("the guests used no CPU time while they were watched")
        observations: list[Observation] = []
        cpu_s = [watched.cpu_s[name][first:] for name in names]
        for number, (name, part, share, used_cores) in enumerate(zip(names, parts, shares, used, strict=True), 1):
            read_back = found.get(name)
            if read_back is None:
                raise RunError(f"guest {name} has no share in force on {lab.nodes[_NODE]}")
            promised = part / sum(parts)
            observation: Observation = {
                "guest": number,
                "weight": part,
                "share_cores": share,
                "read_back_cores": read_back,
                "used_cores": used_cores,
                "got_ratio": (used_cores / sum(used)) / promised,
                "cores_ratio": used_cores / share,
                "all_used_cores": sum(used),
            }
            error = window_error(t_s, cpu_s, number - 1, promised)
            observations.append(observation if error is None else {**observation, "p95_error_frac": error})
        return observations

    def quantities(self, trials: Sequence[Outcome]) -> Quantities:
        """Return for each guest the ratios of received to promised CPU time, and the error of single windows."""
        found = Quantities(trials)
        for condition, some in by_condition(trials, "driver", "weights"):
            for number, own in _by_guest(some):
                under = {**condition, "guest": number}
                found.median("share_got_ratio", "1", column(own, "got_ratio"), under)
                found.median("share_cores_ratio", "1", column(own, "cores_ratio"), under)
                found.median(
                    "share_window_error_frac", "1", column(own, "p95_error_frac"), under, listed=False, relative=False
                )
        return found

    def assumptions(self, quantities: Quantities) -> Mapping[str, Assumption]:
        """Judge `got_ratio`, which is relative to the CPU time of all guests, so that other load does not affect it.

        Without trials there is no verdict, not even "not measured": only the policies `DPS/...` have this assumption.
        """
        statement = "Under contention a guest gets the part of its node that its share promises."
        deviations = [
            Deviation(
                relative(quantity, 1.0),
                f"{bounds_words(quantity, '')} of what its weight promises ({condition_words(quantity.condition)})",
            )
            for quantity in quantities.named("share_got_ratio")
        ]
        return {"share_accuracy": judged(statement, "[DPS]", deviations)} if deviations else {}

    def figures(self, measured: Measured) -> Sequence[Chart | Absent]:
        """Return a strip chart of each guest's CPU time relative to the promise of its weight."""
        name, title = "calibration_shares", "Shares: received over promised CPU time, by weights"
        rows = measured.rows("got_ratio")
        if not rows:
            return [measured.absent(name, title)]
        kinds = sorted({row.at("weights") for row in rows}, key=str)
        series = [
            Series(f"{weights}, guest {guest}", own, "got_ratio", kinds.index((weights,)) % 5, 100.0)
            for (weights, guest), own in groups(rows, "weights", "guest").items()
        ]
        words = listed(series, "%")
        caption = (
            "Fraction of each guest in the CPU time of all guests, relative to the fraction that its weight promises, "
            "while each guest has demand for the whole node; one dot per trial, with the median and its 95 % interval "
            f"over trials. {words}. {count_words(rows)}."
        )
        return [strip_chart(name, title, caption, words, series, "received (% of promised)", around=100.0)]


def window_error(
    t_s: Sequence[float], cpu_s: Sequence[Sequence[float]], guest: int, promised_frac: float
) -> float | None:
    """Return the 95th percentile of |received / promised - 1| over all windows of `_WINDOW_S`, for one guest.

    `cpu_s` are the samples of all guests at `t_s`. Windows in which no guest used CPU time are left out; return None if
    there are no others.
    """
    rates = np.stack([window_rates(t_s, each, _WINDOW_S)[1] for each in cpu_s])  # (guests, windows)
    together = rates.sum(axis=0)
    known = together > 0.0
    if not known.any():
        return None
    ratios = rates[guest, known] / together[known] / promised_frac
    return float(np.quantile(np.abs(ratios - 1.0), 0.95))


def _parts(weights: str) -> list[int]:
    return [int(part) for part in weights.split(":")]


def _guest(lab: Lab, facts: LabFacts, cpus: float, share_cores: float) -> LabJob:
    """Return a job of one guest with demand for the whole node."""
    sample = lab.job(
        nodes=(_NODE,), memory_mib=guest_mib(facts), cpu_cores=cpus, program="eatcpu", iteration_s=_ITERATION_S
    )
    return lab.job_of(tuple(msgspec.structs.replace(spec, share_cores=share_cores) for spec in sample.specs))


def _by_guest(outcomes: Sequence[Outcome]) -> list[tuple[int, list[Outcome]]]:
    """Return for each guest the outcomes with only its observations."""
    numbers = sorted({int(one["guest"]) for outcome in outcomes for one in outcome.observations if "guest" in one})
    return [
        (number, [
            msgspec.structs.replace(
                outcome, observations=[one for one in outcome.observations if one.get("guest") == number]
            )
            for outcome in outcomes
        ])
        for number in numbers
    ]  # fmt: skip


def _why_beside(lab: LabFacts) -> str:
    """Return the reason why guests of the first node would run in parallel instead of competing, or an empty text.

    The CPU pinning of guests of an agent on another machine is unknown. A node that is a machine has its own CPUs.
    """
    node, facts = lab.scenario.nodes[_NODE], lab.facts[_NODE]
    if traits_in(facts).owns_machine or not (node.spawn or lab.scenario.box is not None):
        return ""
    cpus, most = len(node.cpu_set) or facts.machine_cores, max(1, ceil(facts.cpus - _ROUNDING_CORES))
    if cpus <= most:
        return ""
    return f"guests on {node.name} may run on {cpus} CPUs side by side for {facts.cpus:g} cores: expected cpu_set = [0]"
