"""The cases of a benchmark: its file gets the rows of those that it does not have yet, in random order.

A case is the part of a row that says what was measured, such as `{"seed": 1, "load": 0.5, "way": ""}`.
"""

from __future__ import annotations

import argparse
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from rows import read_rows

LEAST_FREE_BYTES = 1 << 30

Row = dict[str, Any]


def options(about: str, file: str) -> argparse.ArgumentParser:
    """Return a parser with the options that such benchmarks share; `file` gets the raw figures by default."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=1, help="the first seed, or number of a repeat, which is its seed")
    parser.add_argument("--json", type=Path, default=Path(file), help="file for the raw figures, appended to")
    parser.add_argument("--table", type=Path, help="only print the table of this file")
    return parser


def check_disk() -> None:
    """End the benchmark if live runs would not have enough space."""
    if shutil.disk_usage(".").free < LEAST_FREE_BYTES:
        raise SystemExit("expected 1 GiB of free disk")


def missing(path: Path, cases: Sequence[Row], *groups: str) -> Iterator[Row]:
    """Yield the cases of which the file has no row.

    Cases that follow each other and agree in the keys `groups` come in random order. The value of the last of these
    keys is the seed of the order, so that an interrupted benchmark continues in the same one.
    """
    there = read_rows(path)
    for key, members in groupby(cases, key=lambda case: [case[name] for name in groups]):
        order = list(members)
        random.Random(key[-1]).shuffle(order)  # noqa: S311  # a random order, not a secret
        yield from (case for case in order if not any(case.items() <= row.items() for row in there))


def core_rates(path: Path) -> list[float]:
    """Return the work units per second of a core by which the live runs in the file were sized; none without any."""
    return [row["units_per_core_s"] for row in read_rows(path) if "units_per_core_s" in row]


def by_seed(rows: Sequence[Row], case: Mapping[str, Any]) -> dict[int, Row]:
    """Return the rows of a case, by seed."""
    return {row["seed"]: row for row in rows if case.items() <= row.items()}
