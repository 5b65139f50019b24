"""Formulas of the exchange of shares: the paper's own examples, and properties for any numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from testbed.shares.formulas import cores_of, donation, excess, grants, shares_of, shortage

AMOUNTS = st.integers(0, 64_000_000)


def test_the_examples_of_the_paper() -> None:
    assert donation(shares_of(0.4), 3) == shares_of(0.1)
    assert shortage(shares_of(0.5), shares_of(0.67), shares_of(0.5)) == shares_of(0.17)
    given_out = grants(shares_of(0.3), {"a": shares_of(0.17), "b": shares_of(0.43)})
    assert cores_of(given_out["a"]) == 0.085
    assert sum(given_out.values()) == shares_of(0.3)


def test_a_guest_without_upstreams_keeps_what_it_has() -> None:
    assert donation(shares_of(0.4), 0) == 0


@given(AMOUNTS, AMOUNTS, AMOUNTS)
def test_a_guest_is_never_short_and_in_excess_at_once(share: int, used: int, free: int) -> None:
    assert 0 <= excess(share, used) <= share
    assert 0 <= shortage(share, used, free) <= free
    assert min(excess(share, used), shortage(share, used, free)) == 0


@given(AMOUNTS, st.integers(0, 100))
def test_no_more_than_the_excess_is_given(surplus: int, upstreams: int) -> None:
    assert 0 <= donation(surplus, upstreams) * upstreams <= surplus


@given(AMOUNTS, st.dictionaries(st.text(), AMOUNTS, max_size=8))
def test_a_bank_gives_nobody_more_than_is_needed_or_there(balance: int, shortages: dict[str, int]) -> None:
    given_out = grants(balance, shortages)
    assert given_out.keys() == shortages.keys()
    assert sum(given_out.values()) <= balance
    assert all(given_out[guest] <= shortages[guest] for guest in shortages)
    unspent = min(balance, sum(shortages.values())) - sum(given_out.values())
    assert unspent < max(len(shortages), 1)  # less than one for each guest, from rounding
