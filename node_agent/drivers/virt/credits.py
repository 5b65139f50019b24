"""Weights with which Xen's credit scheduler lets every guest use what its cap allows.

That scheduler hands out credits each 30 ms, to each domain that is awake by its weight, to a capped one at most its
cap; and it parks capped virtual CPUs whose credits are used up, even beside an idle processor
(xen/common/sched/credit.c, csched_acct). So a capped guest gets the smaller of its cap and its share by weight, as soon
as others are awake: with the weights that hosts use to favour domain 0 that is a fraction of its cap. Weights here are
proportional to caps, and that of domain 0 to the processors that are not for guests: then no share is below its cap
while caps fit the node.
"""

from __future__ import annotations

import math

_PER_CORE = 4096  # fine enough for a cap of 1 %; Xen multiplies it with all credits in 32 bits
_DOM0_LEAST_CORES = 1 / 4  # where everything was promised to guests: all orders are its work


def guest_weight(cores: float, vcpus: int) -> int:
    """Return the weight of a guest that may use `cores` of physical CPUs; Xen counts it once a virtual CPU."""
    return max(1, math.ceil(_PER_CORE * cores / vcpus))


def dom0_weight(cores: float, for_guests_cores: float, vcpus: int) -> int:
    """Return the weight of domain 0 on a machine of so many cores, of which guests may use some."""
    left_cores = min(max(cores - for_guests_cores, _DOM0_LEAST_CORES), vcpus)
    return max(1, math.floor(_PER_CORE * left_cores / vcpus))
