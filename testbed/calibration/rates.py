"""Rates: how exactly CPU is shared out, and what jobs make of their share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from testbed.calibration.experiment import Value
from testbed.calibration.fits import ratio_interval, slope_interval
from testbed.calibration.found import Column, Found, by_condition, column, number
from testbed.calibration.model import Quantity
from testbed.calibration.trials import Outcome, Trials
from testbed.measure.robust import Interval

CAP_ACCURACY, CAP_RESPONSE, PROPORTIONALITY, ISOLATION, VIRTUALISATION = (
    "cap-accuracy", "cap-response", "proportionality", "isolation", "virtualisation",
)  # fmt: skip
_NO_INTERVAL = float("nan")


def add_rates(found: Found, trials: Trials) -> None:
    """Add what the five experiments support."""
    _cap_accuracy(found, trials.of(CAP_ACCURACY))
    for condition, outcomes in by_condition(trials.of(CAP_RESPONSE), "from_frac", "to_frac", "vcpus"):
        found.median("cap_response_s", "s", column(outcomes, "response_s"), condition)
    found.median("cap_command_s", "s", column(trials.of(CAP_RESPONSE), "command_s"), {}, listed=False)
    for condition, outcomes in by_condition(
        trials.of(PROPORTIONALITY), "kind", "tasks", "topology", "message_bytes", "iteration_s"
    ):
        _proportionality(found, condition, outcomes)
    for condition, outcomes in by_condition(trials.of(ISOLATION), "cap_frac", "neighbours"):
        found.median("isolated_rate", "1", column(outcomes, "relative_rate"), condition)
    for condition, outcomes in by_condition(trials.of(VIRTUALISATION), "program", "ranks", "iteration_s"):
        _virtualisation(found, condition, outcomes)


def _cap_accuracy(found: Found, outcomes: Sequence[Outcome]) -> None:
    """Errors of used against requested CPU time, in percentage points of the CPUs of the guest.

    An observation is the median over the windows of a trial; its worst window is told beside it.
    """
    sizes: dict[float, Column] = {}
    worst: dict[float, Column] = {}
    for condition, some in by_condition(outcomes, "vcpus", "cap_frac"):
        own: dict[float, Column] = {}
        vcpus = number(condition, "vcpus") or 1.0
        for trial, window_s, observation in _windows(some):
            asked, used = number(observation, "requested_cores"), number(observation, "used_cores")
            if asked is None or used is None:
                continue
            error = 100.0 * (used - asked) / vcpus
            worst_frac = number(observation, "worst_error_frac")
            furthest = error if worst_frac is None else 100.0 * worst_frac
            for columns, value in ((own, error), (sizes, abs(error)), (worst, abs(furthest))):
                columns.setdefault(window_s, Column()).add(value, trial)
        for window_s in sorted(own):
            under = {**condition, "window_s": window_s}
            found.median("cap_error_points", "points", own[window_s], under, relative=False)
    for window_s in sorted(sizes):
        under = {"window_s": window_s}
        found.median("cap_error_median_points", "points", sizes[window_s], under, listed=False, relative=False)
        furthest_of_all = Interval(max(worst[window_s].values), _NO_INTERVAL, _NO_INTERVAL)
        found.add("cap_error_worst_points", "points", furthest_of_all, worst[window_s], under, model="maximum")


def _windows(outcomes: Sequence[Outcome]) -> Iterator[tuple[int, float, Mapping[str, Value]]]:
    """Yield the trial, the nominal window and the observation of each: windows are as long as the clock made them."""
    for outcome in outcomes:
        for observation in outcome.observations:
            window_s = number(observation, "window_s")
            if window_s is not None:
                yield outcome.trial, float(f"{window_s:.2g}"), observation


def _proportionality(found: Found, condition: dict[str, Value], outcomes: Sequence[Outcome]) -> None:
    by_yield: dict[float, Column] = {}
    yields, rates = [], Column()
    for outcome in outcomes:
        for observation in outcome.observations:
            yield_frac, rate = number(observation, "yield_frac"), number(observation, "relative_rate")
            if yield_frac is None or rate is None:
                continue
            by_yield.setdefault(round(yield_frac, 4), Column()).add(rate, outcome.trial)
            yields.append(yield_frac)
            rates.add(rate, outcome.trial)
    worst: Quantity | None = None
    for yield_frac in sorted(by_yield):
        under = {**condition, "yield_frac": yield_frac}
        quantity = found.median("relative_progress", "1", by_yield[yield_frac], under)
        if quantity and (worst is None or _off(quantity) > _off(worst)):
            worst = quantity
    if worst is None:
        return
    slope = slope_interval(yields, rates.values, rates.trials)
    if slope:
        found.add("progress_slope", "1", slope, rates, condition, model="linear")
    at = float(worst.condition["yield_frac"])
    off = Interval(worst.value - at, worst.low - at, worst.high - at)
    found.add("progress_worst_deviation", "1", off, by_yield[at], {**condition, "yield_frac": at})


def _off(quantity: Quantity) -> float:
    return abs(quantity.value - float(quantity.condition["yield_frac"]))


def _virtualisation(found: Found, condition: dict[str, Value], outcomes: Sequence[Outcome]) -> None:
    """Add rates of guests relative to native ones, and of capped guests relative to uncapped ones and their cap."""
    groups = by_condition(outcomes, "where", "cap_frac")

    def rate(where: str, name: str) -> Column:
        return column([outcome for kind, some in groups if kind.get("where") == where for outcome in some], name)

    for name, observed in (("guest_relative_rate", "units_per_s"), ("guest_relative_efficiency", "units_per_cpu_s")):
        _ratio(found, name, rate("guest", observed), rate("native", observed), condition)
    guest = rate("guest", "units_per_s")
    for kind, some in groups:
        cap_frac = number(kind, "cap_frac")
        if kind.get("where") == "capped-guest" and cap_frac:
            own = column(some, "units_per_s")
            over_cap = Column([value / cap_frac for value in own.values], own.trials)
            _ratio(found, "capped_rate_over_cap", over_cap, guest, {**condition, "cap_frac": cap_frac})


def _ratio(found: Found, name: str, top: Column, bottom: Column, condition: dict[str, Value]) -> None:
    if top.values and bottom.values and min(*top.values, *bottom.values) > 0.0:
        ratio = ratio_interval(top.values, top.trials, bottom.values, bottom.trials)
        both = Column([*top.values, *bottom.values], [*top.trials, *bottom.trials])
        found.add(name, "1", ratio, both, condition)
