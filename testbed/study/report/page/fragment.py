"""Pieces of HTML for notebooks: tables, numbers and figures of runs, every text in them escaped.

A fragment needs nothing else: no style sheet, no script, no network. Its colours follow those of the notebook.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Final

from testbed.errors import printable

if TYPE_CHECKING:
    from testbed.study.report.page.style import Headline
    from testbed.study.report.page.tables import Table

MOST_ROWS: Final = 50
_MOST_CHARS: Final = 200  # of a cell
_LEFT, _RIGHT = ' style="text-align:left"', ' style="text-align:right"'


def text_html(text: str, most_chars: int = _MOST_CHARS) -> str:
    """Return a text of anybody as HTML: one line, without control characters, escaped."""
    return escape(printable(text, most_chars))


def table_html(table: Table, most_rows: int = MOST_ROWS) -> str:
    """Return a table with at most so many rows, and say how many it leaves out."""
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


def headlines_html(headlines: Sequence[Headline]) -> str:
    """Return the numbers that a page begins with as one table of two columns."""
    values = [(text_html(one.label), text_html(f"{one.value} {one.unit}".rstrip())) for one in headlines]
    rows = "".join(f"<tr><td{_LEFT}>{label}</td><td{_RIGHT}>{value}</td></tr>" for label, value in values)
    return f"<table><tbody>{rows}</tbody></table>"


def image_html(svg: bytes, alt: str) -> str:
    """Return an SVG file as an image, which runs no script and loads nothing."""
    data = base64.b64encode(svg).decode("ascii")
    return f'<img style="max-width:100%" alt="{text_html(alt, 1000)}" src="data:image/svg+xml;base64,{data}">'


def _side(table: Table, column: int) -> str:
    return _LEFT if column < table.texts else _RIGHT
