"""The order of the saves of one plan, where a node makes only some at once: first those that somebody waits for.

A job that is to be placed waits until its nodes have room. In the order of the plan, each such job gets the saves that
it needs moved forward: on each node without room for it the largest first, until there is room. The others come last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence


def in_order_of_need(
    saves: Sequence[Mapping[int, int]], arrivals: Sequence[Mapping[int, int]], free_mib: Mapping[int, int]
) -> list[int]:
    """Return the order of saves as places in `saves`.

    `saves` are the memory that each save frees, by node, `arrivals` the memory that each job needs that waits for room,
    `free_mib` what is free now.
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
    """Return for each save, in this order, the places of those that must be over before it, on its nodes."""
    by_node: dict[int, list[int]] = {}
    after: list[tuple[int, ...]] = []
    for place, nodes in enumerate(saves):
        before = {earlier[-at_once] for node in nodes if len(earlier := by_node.setdefault(node, [])) >= at_once}
        after.append(tuple(sorted(before)))
        for node in nodes:
            by_node[node].append(place)
    return after
