"""How many shares guests give, ask for and get (Tsai and Shin, DPS, 2006, section III).

A share is a millionth of a core, so that sums of shares are exact. `used` is the CPU time of a guest per second of the
last period, in the same unit. It may exceed the guest's share, as idle time is anybody's.

Guests whose shares are caps cannot use more than their share, so their use does not show what they lack. One that uses
nearly all of its share asks for as much again. The others keep a tenth above their use, and give half of the rest: if
they gave all of it, each would hold back its job as soon as the slowest task is faster.
"""

from __future__ import annotations

from collections.abc import Mapping

SHARES_PER_CORE = 1_000_000
LEAST_CAP = (
    SHARES_PER_CORE // 100
)  # the least cap that control groups have, per core: nobody gives what it needs for it


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


def spare(share: int, used: int) -> int:
    """Return what a capped guest has beyond its use and a tenth of headroom; nothing below a fiftieth of its share."""
    used = max(used, LEAST_CAP)
    found = share - used - used // 9
    return found if found * 50 >= share else 0


def wanted(share: int, used: int, free: int) -> int:
    """Return what a capped guest asks for that uses 95 % of its share or more: as much again, as far as it is free.

    So guests that are slow together keep the proportion of their shares. Where nothing is free it asks for the least
    amount: that tells the bank that caps hold back the job.
    """
    return max(min(share, free), 1) if used * 20 >= share * 19 else 0


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
