"""Golden figures: kept in files, compared with the current results of the code, and rewritten deliberately."""

from __future__ import annotations

import difflib
import json
import math
import tomllib
from collections.abc import Callable, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

Tolerance = Callable[[str], float]  # relative tolerance of a number, by the name that it has in its table

_NOTHING = object()


def exact(_name: str) -> float:
    """Return the tolerance of numbers that the same code reproduces to the last bit."""
    return 0.0


def as_text(path: Path, found: object) -> str:
    """Return the content of a file of golden figures: text unchanged, everything else as JSON."""
    if path.suffix == ".json":
        return json.dumps(found, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    assert isinstance(found, str)
    return found


def differences(path: Path, found: object, tolerance: Tolerance) -> list[str]:
    """Return the differences of figures from those in a file, one line each.

    Files are read by their suffix: values of JSON and TOML are compared one by one, other files line by line.
    """
    if not path.exists():
        return [f"{path.name}: no such file"]
    pinned, text = path.read_text(encoding="utf-8"), as_text(path, found)
    if path.suffix == ".json":
        return list(_compare(json.loads(pinned), json.loads(text), tolerance, ""))
    if path.suffix == ".toml":
        return list(_compare(tomllib.loads(pinned), tomllib.loads(text), tolerance, ""))
    return list(_compare(pinned.splitlines(), text.splitlines(), tolerance, "line"))


def changed_lines(path: Path, found: object) -> str:
    """Return the unified difference that writing `found` makes to a file."""
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    new = as_text(path, found)
    return "\n".join(difflib.unified_diff(old.splitlines(), new.splitlines(), path.name, path.name, lineterm="", n=2))


def _compare(pinned: Any, found: Any, tolerance: Tolerance, at: str) -> list[str]:
    if isinstance(pinned, Mapping) and isinstance(found, Mapping):
        pairs = [(f"{at}/{key}", pinned.get(key, _NOTHING), found.get(key, _NOTHING)) for key in {**pinned, **found}]
    elif isinstance(pinned, list) and isinstance(found, list):
        both = zip_longest(pinned, found, fillvalue=_NOTHING)
        pairs = [(f"{at}/{number}", *pair) for number, pair in enumerate(both, 1)]
    else:
        return (
            [] if _same(pinned, found, tolerance(_name(at))) else [f"{at}: pinned {_show(pinned)}, now {_show(found)}"]
        )
    return [line for place, one, other in pairs for line in _compare(one, other, tolerance, place)]


def _same(pinned: object, found: object, rel_tol: float) -> bool:
    numbers = [value for value in (pinned, found) if isinstance(value, int | float) and not isinstance(value, bool)]
    if rel_tol and len(numbers) == 2:
        return math.isclose(*numbers, rel_tol=rel_tol)
    return type(pinned) is type(found) and pinned == found


def _name(at: str) -> str:
    """Return the innermost key of a path; numbers are indices of lists."""
    return next((key for key in reversed(at.split("/")) if key and not key.isdecimal()), "")


def _show(value: object) -> str:
    return "nothing" if value is _NOTHING else repr(value)
