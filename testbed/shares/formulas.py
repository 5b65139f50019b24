"""Formulas for the shares that guests give, request and receive (Tsai and Shin, DPS, 2006, section III).

A share is a millionth of a core, so that sums of shares are exact. `used` is the CPU time of a guest per second of the
last period, in the same unit. It may exceed the guest's share, as every guest may use idle CPU time.

Guests whose shares are caps cannot use more than their share, so their use does not show their shortage. A guest that
uses nearly all of its share requests as much again. The others keep a tenth above their use, and give half of the rest.
If they gave all of it, each would hold back its job as soon as the slowest task is faster.
"""

from __future__ import annotations

from collections.abc import Mapping

SHARES_PER_CORE = 1_000_000
LEAST_CAP = SHARES_PER_CORE // 100  # the least cap of a control group: a capped guest never gives shares below it


def shares_of(cores: float) -> int:
    """Return an amount of cores in shares."""
    return round(cores * SHARES_PER_CORE)


def cores_of(shares: int) -> float:
    """Return shares in cores."""
    return shares / SHARES_PER_CORE


def excess(share: int, used: int) -> int:
    """Return the shares that a guest has and does not use."""
    return max(share - used, 0)


def shortage(share: int, used: int, free: int) -> int:
    """Return the shares that a guest uses beyond its own, at most the `free` (not booked) shares of its node."""
    return max(min(used - share, free), 0)


def spare(share: int, used: int) -> int:
    """Return the shares of a capped guest beyond its use and a tenth of headroom; 0 below a fiftieth of its share."""
    used = max(used, LEAST_CAP)
    found = share - used - used // 9
    return found if found * 50 >= share else 0


def wanted(share: int, used: int, free: int) -> int:
    """Return the shares that a capped guest requests: as many again at a use of 95 % or more, at most the `free` ones.

    Guests that are slow together thereby keep the proportion of their shares. Where no shares are free, the guest
    requests 1, which signals to the bank that caps hold back the job.
    """
    return max(min(share, free), 1) if used * 20 >= share * 19 else 0


def donation(surplus: int, upstreams: int) -> int:
    """Return the shares for each upstream guest, 1/(upstreams + 1) of an excess; the giver keeps as much."""
    return surplus // (upstreams + 1) if upstreams else 0


def grants(balance: int, shortages: Mapping[str, int]) -> dict[str, int]:
    """Return the shares that a bank gives to each guest that is short: all that it needs, or in proportion to needs.

    This is the minimum of f and f·E/F: the maximum that equation 2 prints contradicts the paper's own example.
    """
    needed = sum(shortages.values())
    if needed <= balance:
        return dict(shortages)
    return {guest: short * balance // needed for guest, short in shortages.items()}
