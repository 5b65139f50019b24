"""Line numbers of keys in a TOML file, for messages about their values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]#]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")
_QUOTES = re.compile(r'''"""|\'{3}''')
_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")


def line_of(text: str, location: Sequence[int | str]) -> int:
    """Return the line, from 1 on, of the key at a location, or of the nearest table around a key without a line.

    A location is a path of table names, with an index after the name of an array of tables.
    """
    lines = _lines(text)
    steps = tuple(location)
    while steps and steps not in lines:
        steps = steps[:-1]
    return lines.get(steps, 1)


def _lines(text: str) -> dict[tuple[int | str, ...], int]:
    """Return the lines of all tables and keys that begin a line; keys in inline tables have no line."""
    found: dict[tuple[int | str, ...], int] = {}
    counts: Counter[tuple[int | str, ...]] = Counter()
    table: tuple[int | str, ...] = ()
    quote = ""  # the delimiter of a multi-line string that is open
    for number, line in enumerate(text.split("\n"), start=1):
        begins_inside, quote = bool(quote), _open_quote(line, quote)
        if begins_inside:
            continue
        if (header := _HEADER.match(line)) is not None and (names := _names(header[2])):
            table = (*_within(names[:-1], counts), names[-1])
            if header[1] == "[[":
                found.setdefault(table, number)
                counts[table] += 1
                table = (*table, counts[table] - 1)
            found.setdefault(table, number)
        elif (key := _KEY.match(line)) is not None:
            names = _names(key[1])
            for count in range(1, len(names) + 1):  # a dotted key also begins the tables on its path
                found.setdefault(table + names[:count], number)
    return found


def _open_quote(line: str, quote: str) -> str:
    """Return the delimiter of the multi-line string that is open at the end of a line; `quote` is open at its begin."""
    for found in _QUOTES.findall(line):
        if not quote:
            quote = found
        elif found == quote:
            quote = ""
    return quote


def _within(names: Sequence[str], counts: Counter[tuple[int | str, ...]]) -> tuple[int | str, ...]:
    """Return the location of a table inside the last element of each array of tables on its path."""
    steps: tuple[int | str, ...] = ()
    for name in names:
        steps = (*steps, name)
        if counts[steps]:
            steps = (*steps, counts[steps] - 1)
    return steps


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in _PART.findall(text))
