"""The slots of nodes of a run under XGE, for the terminal."""

from __future__ import annotations

from rich import box
from rich.table import Table

from testbed.study.report.page.slot_tables import COLUMNS, rows_of
from testbed.study.report.run.slots import Slots


def slots_table(slots: Slots) -> Table:
    """Return a table with one row per node, and one for all nodes."""
    title = "Slots of nodes (how often a node was lent, taken back or taken; wall seconds per active slot)"
    table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for index, column in enumerate(COLUMNS):
        table.add_column(column, justify="left" if index < 2 else "right", no_wrap=True)
    for row in rows_of(slots):
        table.add_row(*row)
    return table
