"""The file in which a benchmark keeps its raw figures: a JSON object a line, so that it can go on where it was."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of the file; none if there is no file yet."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def add_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add rows at the end of the file, all of them or, at a full disk, an error."""
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    with path.open("a") as file:
        file.write(lines)
