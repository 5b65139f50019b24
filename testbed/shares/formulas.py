"""How many shares guests give, ask for and get (Tsai and Shin, DPS, 2006, section III).

A share is a millionth of a core, so that sums of shares are exact. `used` is the CPU time of a guest per second of the
last period, in the same unit. It may exceed the guest's share, as idle time is anybody's.
"""

from __future__ import annotations

from collections.abc import Mapping

SHARES_PER_CORE = 1_000_000


def shares_of(cores: float) -> int:
    """Return an amount of cores in shares."""
    return round(cores * SHARES_PER_CORE)


def cores_of(shares: int) -> float:
    """Return shares in cores."""
    return shares / SHARES_PER_CORE


def excess(share: int, used: int) -> int:
    """Return what a guest has and does not use."""
    return max(share - used, 0)


def shortage(share: int, used: int, free: int) -> int:
    """Return what a guest uses and does not have, as far as `free` shares of its node are booked by nobody."""
    return max(min(used - share, free), 0)


def donation(surplus: int, upstreams: int) -> int:
    """Return what each upstream guest gets of an excess; as much is withheld: the factor is 1/(upstreams + 1)."""
    return surplus // (upstreams + 1) if upstreams else 0


def grants(balance: int, shortages: Mapping[str, int]) -> dict[str, int]:
    """Return what a bank gives to guests that are short: all that they need, or in proportion to it.

    This is the minimum of f and f·E/F: the maximum that equation 2 prints contradicts the paper's own example.
    """
    needed = sum(shortages.values())
    if needed <= balance:
        return dict(shortages)
    return {guest: short * balance // needed for guest, short in shortages.items()}
