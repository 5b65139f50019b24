"""Tables about jobs that compete by shares: the cost of their exchange in messages."""

from __future__ import annotations

import polars as pl

from testbed.study.report.page.table import Table

_COLUMNS = ("exchange_sent", "exchange_received")


def exchange_table(nodes: pl.DataFrame | None) -> Table | None:
    """Return messages about shares by node, from the points `node` of a run; None if no agent has counted any."""
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
        "Messages about shares that agents have sent each other, from a node's first job that exchanges shares until "
        "the end of the run, in wall seconds. Messages within a node are not counted."
    )
    columns = ("node", "seconds", "sent", "sent per s", "received", "received per s")
    return Table("exchange", "Messages about shares", caption, columns, tuple(sorted(rows)))


def _counted(counts: pl.Series) -> int:
    """Return by how much a count has grown; it begins at 0 again with each agent."""
    grown = counts.diff().drop_nulls()
    again = counts[1:].filter(grown < 0)
    return int(grown.filter(grown >= 0).sum()) + int(again.sum())


def _cells(count: int, span_s: float) -> tuple[str, str]:
    return f"{count:,}", f"{count / span_s:.2f}"
