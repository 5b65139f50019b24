"""The table of slots of runs under XGE: counts of a node's changes, and the time for which each slot was active."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

from testbed.scheduling.policies.xge_slots import SLOTS
from testbed.study.report.page.table import Table
from testbed.study.report.run.slots import Slots

COLUMNS = (
    "node", "partition", "lent", "taken back", "taken", "suspended", "resumed", *(f"{slot} s" for slot in SLOTS)
)  # fmt: skip
_CAPTION = (
    "Lent: number of times that serial jobs began to run on a node of the parallel partition. Taken back: number of "
    "lendings that a parallel job ended. Taken: number of times that parallel jobs began to run on a node of the "
    "serial partition. Suspended, resumed: number of serial jobs that were saved, or restored, on the node. Seconds "
    "are wall seconds for which the slot was active."
)


def slots_table(found: Sequence[Slots]) -> Table | None:
    """Return a table with one row per node and one for all nodes, for each schedule; None without a schedule."""
    if not found:
        return None
    several = len(found) > 1
    rows = []
    for slots in found:
        whose = (slots.schedule.name,) if several else ()
        rows += [(*whose, *cells) for cells in rows_of(slots)]
    columns = ("schedule", *COLUMNS) if several else COLUMNS
    return Table("node_slots", "Slots of nodes", _CAPTION, columns, tuple(rows), texts=3 if several else 2)


def rows_of(slots: Slots) -> list[tuple[str, ...]]:
    """Return the cells of one row per node, and of one row for all nodes."""
    rows = []
    total_s = dict.fromkeys(SLOTS, 0.0)
    for node in slots.nodes:
        seconds = node.seconds
        total_s = {slot: total_s[slot] + seconds[slot] for slot in SLOTS}
        counts = tuple(str(count) for count in astuple(node.counts))
        rows.append((slots.schedule.node_name(node.node), node.home, *counts, *_seconds(seconds)))
    return [*rows, ("all", "", *(str(count) for count in astuple(slots.total)), *_seconds(total_s))]


def _seconds(seconds: dict[str, float]) -> tuple[str, ...]:
    return tuple(f"{seconds[slot]:,.1f}" for slot in SLOTS)
