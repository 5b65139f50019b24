"""The order of the saves of a plan if nodes limit concurrent saves: saves that free needed memory come first.

A job that is to be placed waits until its nodes have enough free memory. For each such job, in the order of the plan,
the saves that it needs come next: on each node without enough memory the largest saves, until the memory suffices. All
other saves come last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence


def in_order_of_need(
    saves: Sequence[Mapping[int, int]], arrivals: Sequence[Mapping[int, int]], free_mib: Mapping[int, int]
) -> list[int]:
    """Return the order of saves, as indices of `saves`.

    `saves` has the memory that each save frees, `arrivals` the memory that each waiting job needs, and `free_mib` the
    memory that is free now; all in MiB by node.
    """
    free = Counter(free_mib)
    order: list[int] = []
    left = list(range(len(saves)))
    for needs in arrivals:
        for node, mib in needs.items():
            here = sorted((place for place in left if saves[place].get(node)), key=lambda place: -saves[place][node])
            while free[node] < mib and here:
                place = here.pop(0)
                left.remove(place)
                order.append(place)
                free.update(saves[place])
        free.subtract(needs)
    return order + left


def staged(saves: Sequence[Mapping[int, int]], at_once: int) -> list[tuple[int, ...]]:
    """Return for each save, in this order, the indices of the saves on its nodes that have to end before it."""
    by_node: dict[int, list[int]] = {}
    after: list[tuple[int, ...]] = []
    for place, nodes in enumerate(saves):
        before = {earlier[-at_once] for node in nodes if len(earlier := by_node.setdefault(node, [])) >= at_once}
        after.append(tuple(sorted(before)))
        for node in nodes:
            by_node[node].append(place)
    return after
