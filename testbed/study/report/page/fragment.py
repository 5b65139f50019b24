"""HTML fragments for notebooks: numbers and figures of runs, with all texts escaped.

A fragment is self-contained: no style sheet, no script, no network. Its colours are those of the notebook.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Final

from testbed.errors import printable

if TYPE_CHECKING:
    from testbed.study.report.page.style import Headline

_MOST_CHARS: Final = 200  # most characters of a table cell
LEFT, RIGHT = ' style="text-align:left"', ' style="text-align:right"'


def text_html(text: str, most_chars: int = _MOST_CHARS) -> str:
    """Return an untrusted text as HTML: one line, without control characters, escaped."""
    return escape(printable(text, most_chars))


def headlines_html(headlines: Sequence[Headline]) -> str:
    """Return the headlines of a page as a table of two columns."""
    values = [(text_html(one.label), text_html(f"{one.value} {one.unit}".rstrip())) for one in headlines]
    rows = "".join(f"<tr><td{LEFT}>{label}</td><td{RIGHT}>{value}</td></tr>" for label, value in values)
    return f"<table><tbody>{rows}</tbody></table>"


def image_html(svg: bytes, alt: str) -> str:
    """Return an SVG file as an image, which runs no script and loads nothing."""
    data = base64.b64encode(svg).decode("ascii")
    return f'<img style="max-width:100%" alt="{text_html(alt, 1000)}" src="data:image/svg+xml;base64,{data}">'
