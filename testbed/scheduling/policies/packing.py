"""MCB8's packing at given requirements: fills node after node from two lists, against the imbalance [RR 4.3].

Items are jobs, or classes of jobs with equal requirements. Readings where the paper is silent: an
item is CPU-heavy when its requirement is strictly greater than its memory; lists are sorted by decreasing maximum of
the two, then decreasing minimum, then submission; the CPU list comes first on a balanced node.

Nodes with equal use before the packing are filled alike as long as no item runs out of tasks, so a pattern is found
once and repeated. The time grows with the number of different nodes and items, not with the number of nodes and tasks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from testbed.scheduling.compiler import kernel, lean_kernel
from testbed.scheduling.policies.capacity import CAPACITY_FRAC, TOLERANCE_FRAC
from testbed.scheduling.policies.view import Floats, Ints


class Lists(NamedTuple):
    """The two lists in one array of K + 2 positions: CPU-heavy items, a sentinel, the others, a sentinel.

    `key` is the requirement by which a list is sorted, the larger one; `least_other` is the least of `other` from a
    position to the end of its list.
    """

    key: Floats
    other: Floats
    least_other: Floats
    left: Ints  # tasks to be placed
    skip: Ints  # union-find: towards the first position from here on with tasks left
    item: Ints
    border: Ints  # (1,): position of the first sentinel


class Runs(NamedTuple):
    """R runs of consecutive nodes, in the order of filling, with equal use before the packing."""

    end: Ints  # (R,): position after the last node
    cpu_frac: Floats  # (R,) in use on each of its nodes
    mem_frac: Floats  # (R,)
    number: Ints  # (1,): R; the arrays may be longer


class Patterns(NamedTuple):
    """The result of a packing: P patterns, each on consecutive nodes, of entries (item, tasks per node)."""

    first: Ints  # (P,) position of the first node
    nodes: Ints  # (P,) how many consecutive nodes
    end: Ints  # (P,) end of its entries
    item: Ints  # (E,)
    tasks: Ints  # (E,)
    number: Ints  # (1,): P


@kernel
def new_lists(items: int) -> Lists:
    """Return empty lists for that many items."""
    return Lists(
        np.empty(items + 2),
        np.empty(items + 2),
        np.empty(items + 2),
        np.empty(items + 2, dtype=np.int64),
        np.empty(items + 2, dtype=np.int64),
        np.empty(items + 2, dtype=np.int64),
        np.zeros(1, dtype=np.int64),
    )


@kernel
def new_patterns(nodes: int, tasks: int) -> Patterns:
    """Return arrays that can hold any packing of that many tasks on that many nodes."""
    patterns = min(nodes, tasks) + 1
    return Patterns(
        np.empty(patterns, dtype=np.int64),
        np.empty(patterns, dtype=np.int64),
        np.empty(patterns, dtype=np.int64),
        np.empty(tasks + 1, dtype=np.int64),
        np.empty(tasks + 1, dtype=np.int64),
        np.zeros(1, dtype=np.int64),
    )


@lean_kernel
def set_lists(lists: Lists, cpu_frac: Floats, mem_frac: Floats, tasks: Ints, by_cpu: Ints, by_mem: Ints) -> None:
    """Fill the lists from K items: requirements and numbers of tasks (K,), and two orders (K,) of all items.

    `by_cpu` is by decreasing CPU requirement, then decreasing memory, then submission; `by_mem` by decreasing
    memory, then decreasing CPU requirement, then submission.
    """
    position = 0
    for item in by_cpu:
        if cpu_frac[item] > mem_frac[item]:
            lists.key[position] = cpu_frac[item]
            lists.other[position] = mem_frac[item]
            lists.item[position] = item
            position += 1
    border = position
    lists.border[0] = border
    position += 1
    for item in by_mem:
        if cpu_frac[item] <= mem_frac[item]:
            lists.key[position] = mem_frac[item]
            lists.other[position] = cpu_frac[item]
            lists.item[position] = item
            position += 1
    least = np.inf
    for index in range(position, -1, -1):
        if index in (position, border):
            least = np.inf
            lists.left[index] = 0
            lists.skip[index] = index
        else:
            least = min(least, lists.other[index])
            left = tasks[lists.item[index]]
            lists.left[index] = left
            lists.skip[index] = index if left > 0 else index + 1
        lists.least_other[index] = least


@lean_kernel
def _alive(skip: Ints, position: int) -> int:
    """Return the first position from `position` on that has tasks left, or the sentinel."""
    while skip[position] != position:
        skip[position] = skip[skip[position]]
        position = skip[position]
    return position


@lean_kernel
def first_fit(lists: Lists, position: int, end: int, key_room: float, other_room: float) -> int:
    """Return the first position in [position, end) with a task left that fits the free capacity, or `end`."""
    position = _alive(lists.skip, position)
    if position < end and lists.key[position] > key_room:
        low, high = position + 1, end  # the list is sorted by its key
        while low < high:
            middle = (low + high) // 2
            if lists.key[middle] > key_room:
                low = middle + 1
            else:
                high = middle
        position = _alive(lists.skip, low)
    while position < end:
        if lists.other[position] <= other_room:
            return position
        if lists.least_other[position] > other_room:
            return end
        position = _alive(lists.skip, position + 1)
    return end


@lean_kernel
def pack(lists: Lists, items: int, total: int, runs: Runs, patterns: Patterns) -> bool:
    """Try to place all `total` tasks of the lists of `items` items; write `patterns`, return whether all are placed."""
    count, entries, node = 0, 0, 0
    for run in range(runs.number[0]):
        while node < runs.end[run] and total > 0:
            begin = entries
            entries = _fill_node(lists, items, runs.cpu_frac[run], runs.mem_frac[run], begin, patterns)
            if entries == begin:
                break
            again = runs.end[run] - node - 1
            for entry in range(begin, entries):
                total -= patterns.tasks[entry]
                again = min(again, lists.left[patterns.item[entry]] // patterns.tasks[entry])
            for entry in range(begin, entries):
                position, tasks = patterns.item[entry], patterns.tasks[entry]
                total -= again * tasks
                lists.left[position] -= again * tasks
                if lists.left[position] == 0:
                    lists.skip[position] = position + 1
                patterns.item[entry] = lists.item[position]
            patterns.first[count] = node
            patterns.nodes[count] = again + 1
            patterns.end[count] = entries
            count += 1
            node += again + 1
        node = runs.end[run]
    patterns.number[0] = count
    return total == 0


@lean_kernel
def _fill_node(lists: Lists, items: int, cpu_frac: float, mem_frac: float, begin: int, patterns: Patterns) -> int:
    """Fill one node with this use before; append entries (position, tasks) from `begin`, return their end."""
    border, end = lists.border[0], items + 1
    at_cpu, at_mem = 0, border + 1
    entries = begin
    while True:
        cpu_room = CAPACITY_FRAC - cpu_frac
        mem_room = CAPACITY_FRAC - mem_frac
        # Free capacity only shrinks while a node is filled, so an item that did not fit is not tried again there.
        at_cpu = first_fit(lists, at_cpu, border, cpu_room, mem_room)
        at_mem = first_fit(lists, at_mem, end, mem_room, cpu_room)
        if at_cpu == border and at_mem == end:
            return entries
        if at_mem == end or (at_cpu < border and cpu_frac <= mem_frac + TOLERANCE_FRAC):
            position = at_cpu
            cpu_frac += lists.key[position]
            mem_frac += lists.other[position]
        else:
            position = at_mem
            cpu_frac += lists.other[position]
            mem_frac += lists.key[position]
        lists.left[position] -= 1
        if lists.left[position] == 0:
            lists.skip[position] = position + 1
        entry = begin
        while entry < entries and patterns.item[entry] != position:
            entry += 1
        if entry == entries:
            patterns.item[entry] = position
            patterns.tasks[entry] = 0
            entries += 1
        patterns.tasks[entry] += 1
