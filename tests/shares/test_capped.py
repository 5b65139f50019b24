"""Shares that are caps: gifts and requests of guests, and the caps in force on a node."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from testbed.shares.formulas import LEAST_CAP, spare, wanted
from testbed.shares.in_force import in_force
from testbed.shares.messages import Receipt
from testbed.shares.node import BANK, NodeExchange, Use
from testbed.shares.state import AccountState

SHARES = st.integers(0, 1_000_000)


def test_a_guest_at_its_cap_asks_for_as_much_again():
    assert wanted(200_000, 200_000, 1_000_000) == 200_000
    assert wanted(200_000, 190_000, 50_000) == 50_000
    assert wanted(200_000, 189_999, 1_000_000) == 0
    assert wanted(200_000, 200_000, 0) == 1


def test_a_guest_keeps_a_tenth_above_its_use_and_what_the_least_cap_is():
    assert spare(200_000, 90_000) == 100_000
    assert spare(100_000, 88_200) == 2_000
    assert spare(100_000, 89_000) == 0  # less than a fiftieth of its share
    assert spare(LEAST_CAP, 0) == 0


@given(SHARES, SHARES, SHARES)
def test_no_guest_gives_and_asks_at_once(share, used, free):
    assert 0 <= spare(share, used) <= share or spare(share, used) < 0 < LEAST_CAP
    assert not (spare(share, used) > 0 and wanted(share, used, free) > 0)
    assert 0 <= wanted(share, used, free) <= max(min(share, free), 1)


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


def deliver(nodes, messages, free=1_000_000):
    """Deliver messages to the node of each owner; the bank is on the first of `nodes`."""
    while messages:
        message = messages.pop(0)
        owner = message.source if isinstance(message, Receipt) else message.target
        node = next(node for node in nodes if owner in node.accounts)
        messages += node.hear(message, free)


def test_guests_that_no_cap_holds_back_do_not_give_away_what_they_have():
    """A case from a busy machine: all guests used less than their caps, gave half of that, and requested none back."""
    nodes = [
        NodeExchange({"a": AccountState(120_000), BANK: AccountState(0)}, banked=True, total=360_000, capped=True),
        NodeExchange({"b": AccountState(120_000)}, banked=True, total=360_000, capped=True),
        NodeExchange({"c": AccountState(120_000)}, banked=True, total=360_000, capped=True),
    ]
    for number in range(1, 50):
        for node in nodes:
            deliver(nodes, node.exchange({guest: Use(20_000) for guest in node.shares()}, 1_000_000, number))
        deliver(nodes, nodes[0].grant())
    left = {guest: shares for node in nodes for guest, shares in node.shares().items()}
    assert sum(left.values()) >= 359_000
    assert all(100_000 < shares < 140_000 for shares in left.values())


GUESTS = st.dictionaries(st.sampled_from("abcdefgh"), st.tuples(SHARES, SHARES), max_size=8)


@given(GUESTS, st.integers(0, 1_000_000))
def test_no_more_is_in_force_than_the_node_has_unless_the_bases_are_more(guests, node):
    accounts = {guest: shares for guest, (shares, _) in guests.items()}
    bases = {guest: base for guest, (_, base) in guests.items()}
    found = in_force(accounts, bases, node)
    covered = {guest: min(accounts[guest], bases[guest]) for guest in guests}
    assert all(covered[guest] <= found[guest] <= accounts[guest] for guest in guests)
    assert sum(found.values()) <= max(node, sum(covered.values()))
    if found != accounts:  # caps are lowered only if necessary
        assert sum(found.values()) >= node
