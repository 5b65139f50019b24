"""Shares that are caps: what guests give and ask for, and what of it is in force at a node."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from testbed.shares.formulas import LEAST_CAP, spare, wanted
from testbed.shares.in_force import in_force
from testbed.shares.node import BANK, NodeExchange, Use
from testbed.shares.state import AccountState

SHARES = st.integers(0, 1_000_000)


def test_a_guest_at_its_cap_asks_for_as_much_again():
    assert wanted(200_000, 200_000, 1_000_000) == 200_000
    assert wanted(200_000, 190_000, 50_000) == 50_000
    assert wanted(200_000, 189_999, 1_000_000) == 0


def test_a_guest_keeps_a_tenth_above_its_use_and_what_the_least_cap_is():
    assert spare(200_000, 90_000) == 100_000
    assert spare(100_000, 88_200) == 2_000
    assert spare(100_000, 89_000) == 0  # less than a fiftieth of its share
    assert spare(LEAST_CAP, 0) == 0


@given(SHARES, SHARES, SHARES)
def test_no_guest_gives_and_asks_at_once(share, used, free):
    assert 0 <= spare(share, used) <= share or spare(share, used) < 0 < LEAST_CAP
    assert not (spare(share, used) > 0 and wanted(share, used, free) > 0)
    assert 0 <= wanted(share, used, free) <= min(share, free)


def test_the_bank_gets_half_of_what_capped_guests_do_not_use():
    states = {"a": AccountState(300_000), "b": AccountState(300_000), BANK: AccountState(0)}
    node = NodeExchange(states, banked=True, total=600_000, capped=True)
    messages = node.exchange({"a": Use(90_000), "b": Use(300_000)}, 500_000, 1)
    while messages:
        messages += node.hear(messages.pop(0), 500_000)
    assert node.shares() == {"a": 200_000, "b": 300_000}
    messages = node.grant()
    while messages:
        messages += node.hear(messages.pop(0), 500_000)
    assert node.shares() == {"a": 200_000, "b": 400_000}


GUESTS = st.dictionaries(st.sampled_from("abcdefgh"), st.tuples(SHARES, SHARES), max_size=8)


@given(GUESTS, st.integers(0, 1_000_000))
def test_no_more_is_in_force_than_the_node_has_unless_the_bases_are_more(guests, node):
    accounts = {guest: shares for guest, (shares, _) in guests.items()}
    bases = {guest: base for guest, (_, base) in guests.items()}
    found = in_force(accounts, bases, node)
    covered = {guest: min(accounts[guest], bases[guest]) for guest in guests}
    assert all(covered[guest] <= found[guest] <= accounts[guest] for guest in guests)
    assert sum(found.values()) <= max(node, sum(covered.values()))
    if found != accounts:  # nothing is out of force without need
        assert sum(found.values()) >= node
