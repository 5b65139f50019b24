"""The table of messages that agents exchange for jobs that compete by shares."""

from __future__ import annotations

import polars as pl

from testbed.study.report.page.table import Table

_COLUMNS = ("exchange_sent", "exchange_received")


def exchange_table(nodes: pl.DataFrame | None) -> Table | None:
    """Return the table of messages about shares per node, from the `node` points of a run; None without counts."""
    if nodes is None or not set(_COLUMNS) <= set(nodes.columns):
        return None
    known = nodes.drop_nulls(_COLUMNS).sort("time")
    rows = []
    for (node,), own in known.group_by("node", maintain_order=True):
        times_ns = own["time"].to_physical()
        span_s = (times_ns[-1] - times_ns[0]) / 1e9
        if span_s <= 0:
            continue
        counts = [_counted(own[column]) for column in _COLUMNS]
        rows.append((str(node), f"{span_s:,.0f}", *(text for count in counts for text in _cells(count, span_s))))
    if not rows:
        return None
    caption = (
        "Messages about shares between agents, from the first job of a node that exchanges shares until the end of the "
        "run; times in wall seconds. Messages within a node are not counted."
    )
    columns = ("node", "seconds", "sent", "sent per s", "received", "received per s")
    return Table("exchange", "Messages about shares", caption, columns, tuple(sorted(rows)))


def _counted(counts: pl.Series) -> int:
    """Return the growth of a counter, which each new agent restarts from 0."""
    grown = counts.diff().drop_nulls()
    again = counts[1:].filter(grown < 0)
    return int(grown.filter(grown >= 0).sum()) + int(again.sum())


def _cells(count: int, span_s: float) -> tuple[str, str]:
    return f"{count:,}", f"{count / span_s:.2f}"
