"""The file of a benchmark's raw figures: one JSON object per line, so that an interrupted benchmark can continue."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of the file; none if the file does not exist."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def add_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append rows to the file; raises if the disk is full."""
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    with path.open("a") as file:
        file.write(lines)
