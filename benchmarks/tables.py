"""Tables of benchmarks in Markdown, with medians and their intervals."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from intervals import interval_text


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [f"| {' | '.join(cells)} |" for cells in (columns, *rows)]
    lines.insert(1, "|" + "---|" * len(columns))
    return "\n".join(lines)


def measure_cells(found: Mapping[int, Mapping[str, Any]], measure: str) -> list[str]:
    """Return n, the measure, its median over the seeds that have it, and the interval; nothing if none has it."""
    values = [float(row[measure]) for row in found.values() if row.get(measure) is not None]
    if not values:
        return []
    return [str(len(values)), measure, f"{statistics.median(values):.3g}", interval_text(values)]


def ratio_cells(
    found: Mapping[int, Mapping[str, Any]], base: Mapping[int, Mapping[str, Any]], measure: str
) -> list[str]:  # fmt: skip
    """Return the median ratio to the base on the same seed, and its interval; empty cells if no seed has both."""
    return _paired_cells([found[seed][measure] / base[seed][measure] for seed in found if seed in base], ".3f")


def difference_cells(
    found: Mapping[int, Mapping[str, Any]], base: Mapping[int, Mapping[str, Any]], measure: str
) -> list[str]:  # fmt: skip
    """Return the median difference from the base on the same seed, and its interval, as `ratio_cells` does."""
    return _paired_cells([found[seed][measure] - base[seed][measure] for seed in found if seed in base], "+.3g")


def _paired_cells(values: Sequence[float], form: str) -> list[str]:
    return [f"{statistics.median(values):{form}}", interval_text(values, form)] if values else ["", ""]
