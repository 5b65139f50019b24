"""The documentation as a site: `sphinx-build -W docs site`. The pages are plain Markdown, also readable without it."""

from __future__ import annotations

import re
from typing import Any

from pygments.lexers.special import TextLexer

from testbed import __version__

project = "DFRS testbed"
author = "The authors of the DFRS testbed"
release = __version__
extensions = ["myst_parser"]
root_doc = "index"
exclude_patterns = ["results/lanes/*"]
html_theme = "furo"
html_title = project
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # pages that are generated have headings of two levels without one between
_LINK = re.compile(r"\]\(([a-z0-9-]+)\.md\)")
_FOLDERS = {"Decisions and results": ("decisions/*", "results/*")}


def _toctrees(text: str) -> str:
    """Return hidden tables of contents: one for each heading of the front page, of the pages that it links to."""
    found = []
    for section in text.split("\n## ")[1:]:
        caption = section.partition("\n")[0]
        pages = list(dict.fromkeys(_LINK.findall(section)))
        globs = _FOLDERS.get(caption, ())
        lines = [":hidden:", f":caption: {caption}", *([":glob:"] if globs else []), "", *pages, *globs]
        found.append("```{toctree}\n" + "\n".join(lines) + "\n```")
    return "\n\n".join(found)


def _read(_app: Any, name: str, source: list[str]) -> None:
    if name == root_doc:
        source[0] += "\n\n" + _toctrees(source[0])


def setup(app: Any) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("source-read", _read)
    app.add_lexer("flux", TextLexer)  # the query language of InfluxDB
    return {"parallel_read_safe": True}
