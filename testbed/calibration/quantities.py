"""From trials to quantities. A condition that was not measured gives none.

Names end in their unit. A time that was fitted over memory, `save` say, gives `save_s` where it does not depend on it,
else `save_fixed_s` and `save_mib_per_s`, and with a rate that tasks at once share `save_total_mib_per_s` too.
"""

from __future__ import annotations

from testbed.calibration.found import Found, by_condition, column
from testbed.calibration.moving_times import add_moving_times
from testbed.calibration.rates import add_rates
from testbed.calibration.trials import Trials


def find_quantities(trials: Trials) -> Found:
    """Return all quantities, fits and outliers that the trials support."""
    found = Found()
    add_moving_times(found, trials)
    _add_latencies(found, trials)
    add_rates(found, trials)
    return found


def _add_latencies(found: Found, trials: Trials) -> None:
    for condition, outcomes in by_condition(trials.of("enactment"), "command", "guests"):
        found.median("enactment_s", "s", column(outcomes, "round_trip_s"), condition, listed=False)
    bus = column(trials.of("bus"), "round_trip_s")
    found.median("bus_round_trip_s", "s", bus, {}, listed=False)  # a tail is no error, and has its own quantity
    found.median("bus_round_trip_p99_s", "s", bus, {}, quantile=0.99)
    for condition, outcomes in by_condition(trials.of("decision"), "policy", "jobs", "nodes"):
        decide = column(outcomes, "decide_s")
        found.median("decision_s", "s", decide, condition, listed=False)
        found.median("decision_p99_s", "s", decide, condition, quantile=0.99)
