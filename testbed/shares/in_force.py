"""The shares of capped guests that are in force at a node, where each decision of a policy sets new shares.

The `bases` of guests are the shares that the policy gave them. Between decisions, guests take shares of others only as
far as no guest of the node has booked them. When a decision gives a guest more, other guests may already have taken
these shares. The shares that those have beyond their bases are then out of force, as far as they do not fit on the
node. They stay in their accounts, and the guests give them on as unused shares.
"""

from __future__ import annotations

from collections.abc import Mapping


def in_force(accounts: Mapping[str, int], bases: Mapping[str, int], node: int) -> dict[str, int]:
    """Return the shares in force of each guest of a node that has `node` shares.

    Their sum is at most `node`, unless the bases of the guests exceed it.
    """
    found = {guest: min(shares, bases.get(guest, shares)) for guest, shares in accounts.items()}
    room = max(node - sum(found.values()), 0)
    for guest in sorted(accounts):
        more = min(accounts[guest] - found[guest], room)
        found[guest] += more
        room -= more
    return found
