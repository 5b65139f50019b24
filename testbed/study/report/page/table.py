"""A table of a page or a notebook, with cells as text, and its HTML for notebooks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from testbed.study.report.page.fragment import LEFT, RIGHT, text_html

MOST_ROWS: Final = 50


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns; the first `texts` columns are text, the others numbers."""

    name: str
    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: int = 1

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        return table_html(self)


def table_html(table: Table, most_rows: int = MOST_ROWS) -> str:
    """Return a table as HTML with at most `most_rows` rows, and the number of the rows that are left out."""
    head = "".join(f"<th{_side(table, at)}>{text_html(name)}</th>" for at, name in enumerate(table.columns))
    rows = "".join(
        "<tr>" + "".join(f"<td{_side(table, at)}>{text_html(cell)}</td>" for at, cell in enumerate(row)) + "</tr>"
        for row in table.rows[:most_rows]
    )
    hidden = len(table.rows) - most_rows
    more = f"<p>… and {hidden} more rows</p>" if hidden > 0 else ""
    return (
        f"<div><strong>{text_html(table.title)}</strong><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table>{more}<p><small>{text_html(table.caption, 1000)}</small></p></div>"
    )


def _side(table: Table, column: int) -> str:
    return LEFT if column < table.texts else RIGHT
