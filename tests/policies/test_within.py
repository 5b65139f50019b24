"""The suffix `/WITHIN=dps`: names, and decisions by the policy before the suffix."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import UserError
from testbed.scheduling.policies import ipdps
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.policies.configuration import catalogue
from testbed.scheduling.policies.view import ClusterView, Event, SharingPolicy, WakingPolicy
from testbed.scheduling.policies.within import DividingPolicy

NAMES = [*(configuration.name for configuration in catalogue()), *ipdps.RULES]
GREEDY = "GreedyPM */per/OPT=MIN/MINVT=600"


@given(
    st.sampled_from(NAMES), st.sampled_from(["dps", "dps/bank", "dps/distributed"]), st.sampled_from(["", " "]),
    st.sampled_from([str.lower, str.upper, str]),
)  # fmt: skip
def test_names_round_trip(name, within, blank, case):
    found = parse(case(f"{name}{blank}/{blank}WITHIN{blank}={blank}{within.replace('/', f'{blank}/{blank}')}"))
    assert found.name == f"{name}/WITHIN={within.removesuffix('/bank')}"
    assert parse(found.name) == found
    assert isinstance(found, DividingPolicy)
    assert found.within == ("distributed" if "distributed" in within else "bank")
    assert not isinstance(found, SharingPolicy)
    assert isinstance(found, WakingPolicy)
    plain = parse(name)
    assert not isinstance(plain, DividingPolicy)
    assert (found.period_s, found.needs_estimates) == (plain.period_s, plain.needs_estimates)
    assert found.can_ever_run(4, 0.6, 4) == plain.can_ever_run(4, 0.6, 4) is True
    assert found.can_ever_run(5, 0.6, 4) == plain.can_ever_run(5, 0.6, 4) is False


@given(st.text(max_size=12))
def test_no_other_text_is_a_way_to_divide(text):
    if "".join(text.split()).casefold() in {"dps", "dps/bank", "dps/distributed"}:
        return
    with pytest.raises(UserError):
        parse(f"{GREEDY}/WITHIN={text}")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("EASY/WITHIN=dps", "policy EASY: it gives jobs no yields"),
        ("DPS/bank/WITHIN=dps", "policy DPS/bank: it gives jobs no yields"),
        (f"{GREEDY}/WITHIN=none", "WITHIN='?none'?: expected dps or dps/distributed"),
        (f"{GREEDY}/WITHIN=dps/WITHIN=dps", "expected dps or dps/distributed"),
        ("GreedyPN */OPT=MIN/WITHIN=dps", "nearest: .*GreedyPM"),
    ],
)
def test_what_is_wrong_is_said(name, says):
    with pytest.raises(UserError, match=says):
        parse(name)


def test_the_policy_before_the_suffix_decides():
    view = ClusterView(
        time_s=0.0, node_available=np.ones(2, dtype=np.bool_), job_id=np.array([7, 8]), submit_time_s=np.zeros(2),
        tasks=np.array([2, 1]), cpu_need_frac=np.array([1.0, 0.5]), mem_req_frac=np.array([0.2, 0.2]),
        virtual_time_s=np.zeros(2), state=np.zeros(2, dtype=np.int8), task_node=np.full(3, -1),
        start_time_s=np.full(2, np.nan), estimate_s=np.full(2, np.nan), urgent=np.zeros(2, dtype=np.bool_),
    )  # fmt: skip
    event = Event(submitted=(7, 8))
    plain, within = (parse(name).decide(view, event) for name in (GREEDY, f"{GREEDY}/WITHIN=dps"))
    assert within.task_node.tolist() == plain.task_node.tolist()
    assert within.yield_frac.tolist() == plain.yield_frac.tolist()
    assert (plain.yield_frac > 0).all()
