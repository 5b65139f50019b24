"""The nine algorithms of [IPDPS III] in the rules that all policies share, and GREEDY's backoff.

Specific to [IPDPS]: the priority is max(30, flow time) / virtual time², and CPU that remains after equal minimum yields
goes to the jobs with the lowest total CPU need first. FCFS and EASY are those of `testbed.scheduling.policies.batch`.

Readings where the paper is silent: the backoff of GREEDY counts from the submission, so that the retries of a job are
a function of its submit time alone; GREEDY-PMTN's paused jobs are tried after newcomers; DYNMCB8-STRETCH-PER
improves the average estimated stretch with the program of [RR 4.7].
"""

from __future__ import annotations

import re
from math import inf

from testbed.errors import UserError
from testbed.scheduling.compiler import lean_kernel
from testbed.scheduling.policies.state import (
    AT_NEXT_EVENT,
    AT_ONCE,
    CHEAPEST_FIRST,
    GREEDY,
    GREEDY_P,
    MCB8,
    NEVER,
    NO_LIMIT,
    NO_PASS,
    NOTHING,
    ON_COMPLETION,
    OPT_AVG,
    PACK,
    PACK_FOR_STRETCH,
    Mask,
    Rules,
)
from testbed.scheduling.policies.view import Floats, Ints

LEAST_FLOW_TIME_S = 30.0  # in the priority, as in their bounded stretch [IPDPS III.A]
PERIOD_S = 600.0  # [IPDPS III.B]
LONGEST_BACKOFF_S = 4096.0  # min(2^12, 2^count) s [IPDPS III.A]
_DOUBLED_S = 2.0 * LONGEST_BACKOFF_S - 2.0  # 2 + 4 + … + 4096


@lean_kernel
def next_retry_s(submit_time_s: float, time_s: float) -> float:
    """Return the first retry instant after `time_s` of a job that waits: r + 2, r + 2 + 4, …, then every 4096 s.

    The first attempt is the submission, at r. Instants are sums of r and a whole number, whatever `time_s` is.
    """
    after_s = 2.0
    while after_s < _DOUBLED_S and submit_time_s + after_s <= time_s:
        after_s = 2.0 * after_s + 2.0
    if submit_time_s + after_s <= time_s:
        after_s += LONGEST_BACKOFF_S * ((time_s - submit_time_s - after_s) // LONGEST_BACKOFF_S)
        while submit_time_s + after_s <= time_s:
            after_s += LONGEST_BACKOFF_S
    return submit_time_s + after_s


@lean_kernel
def is_retried(submit_time_s: float, time_s: float) -> bool:
    """Whether `time_s` is, exactly, a retry instant of a job submitted at `submit_time_s`."""
    return next_retry_s(submit_time_s, time_s - 1.0) == time_s  # no two are within a second


@lean_kernel
def next_wake_s(rules: Rules, submit_time_s: Floats, running: Mask, time_s: float, active: Ints) -> float:
    """Return the first retry instant after `time_s` of an active job that waits; infinite where none is retried."""
    wake_s = inf
    if rules.backs_off:
        for row in active:
            if not running[row]:
                wake_s = min(wake_s, next_retry_s(submit_time_s[row], time_s))
    return float(wake_s)


def _rules(on_submission: int, resume: int, periodic: int = NO_PASS) -> Rules:
    stretch = periodic == PACK_FOR_STRETCH
    return Rules(
        on_submission=on_submission,
        resume=resume,
        periodic=periodic,
        optimise=OPT_AVG if stretch else CHEAPEST_FIRST,
        limit=NO_LIMIT,
        limit_s=0.0,
        period_s=0.0 if periodic == NO_PASS else PERIOD_S,
        least_flow_time_s=LEAST_FLOW_TIME_S,
        clamps_yields=stretch,
        backs_off=False,
    )


RULES = {
    "GREEDY": _rules(GREEDY, NEVER)._replace(backs_off=True),
    "GREEDY-PMTN": _rules(GREEDY_P, AT_NEXT_EVENT),
    "GREEDY-PMTN-MIGR": _rules(GREEDY_P, AT_ONCE),
    "DYNMCB8": _rules(MCB8, ON_COMPLETION),
    "DYNMCB8-PER": _rules(NOTHING, NEVER, PACK),
    "DYNMCB8-ASAP-PER": _rules(GREEDY, NEVER, PACK),
    "DYNMCB8-STRETCH-PER": _rules(NOTHING, NEVER, PACK_FOR_STRETCH),
}

_PERIOD_SUFFIX = re.compile(
    r"(?P<name> [a-z0-9-]+ -per ) - (?P<period_s> \d+ (?: \.\d+ )? )", re.IGNORECASE | re.VERBOSE
)


def named_rules(name: str, period_s: float) -> tuple[str, Rules] | None:
    """Return the name as printed and the rules of one of these algorithms, or None for any other name.

    A suffix, as in `DYNMCB8-PER-300`, is the period in seconds and overrides `period_s`. Raises UserError for a
    period that is not positive.
    """
    suffix = ""
    if match := _PERIOD_SUFFIX.fullmatch(name):
        name, suffix = match["name"], f"-{match['period_s']}"
        period_s = float(match["period_s"])
    name = name.upper()
    rules = RULES.get(name)
    if rules is None or (suffix and rules.periodic == NO_PASS):
        return None
    if rules.periodic != NO_PASS:
        if not 0.0 < period_s < float("inf"):
            raise UserError(f"policy {name + suffix!r}: the period must be positive seconds, not {period_s}")
        rules = rules._replace(period_s=period_s)
    return name + suffix, rules
