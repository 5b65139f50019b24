"""How much of the shares of capped guests is in force at a node, where policies give guests their shares anew.

Between decisions, guests take shares of others only as far as nobody has booked them. When a decision gives a guest
more, others may have that: what they have beyond their `bases`, the shares that the policy gave them, is then out of
force as far as it does not fit. It stays in their accounts, and they give it on as what they do not use.
"""

from __future__ import annotations

from collections.abc import Mapping


def in_force(accounts: Mapping[str, int], bases: Mapping[str, int], node: int) -> dict[str, int]:
    """Return the shares in force of each guest of a node that has `node` shares.

    Together they are no more than that, unless the bases of the guests are.
    """
    found = {guest: min(shares, bases.get(guest, shares)) for guest, shares in accounts.items()}
    room = max(node - sum(found.values()), 0)
    for guest in sorted(accounts):
        more = min(accounts[guest] - found[guest], room)
        found[guest] += more
        room -= more
    return found
