"""A calibration as tables: for the terminal, for documents (Markdown) and for programs (JSON)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from testbed.study.calibration.model import Calibration, Quantity, condition_words
from testbed.study.calibration.model_file import overheads_table

_FIGURES = frozenset({"value", "n", "residual", "outliers", "trial", "expected", "deviations", "deviation at most"})


@dataclass(frozen=True, slots=True)
class Table:
    """A title, the heads of columns, and rows of cells as text."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def text(self) -> str:
        """Return the table as text in columns of fixed width, with the title on the first line."""
        widths = [max(map(len, column)) for column in zip(self.heads, *self.rows, strict=True)]
        lines = [self.heads, *self.rows]
        cells = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
        return "\n".join((self.title, *(line.rstrip() for line in cells)))

    def markdown(self) -> str:
        """Return the table in Markdown."""
        lines = [self.heads, ("---",) * len(self.heads), *self.rows]
        rows = (
            "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines
        )
        return "\n".join((f"**{self.title}**", "", *rows))


def quantity_table(calibration: Calibration) -> Table:
    """Return all quantities with their intervals and units."""
    heads = ("quantity", "under", "value", "95 % interval", "unit", "n", "model", "residual", "outliers")
    rows = tuple(
        (
            one.name, condition_words(one.condition), _figure(one.value), _interval(one), one.unit, str(one.n),
            one.model, _percent(one.goodness), str(one.outliers),
        )
        for one in calibration.quantities
    )  # fmt: skip
    return Table("Quantities (n: trials; residual: median absolute residual, relative to the model)", heads, rows)


def assumption_table(calibration: Calibration) -> Table:
    """Return the verdict on each assumption of the papers."""
    rows = tuple(
        (name, found.verdict, _percent(found.within_frac), found.statement, found.found, found.source)
        for name, found in calibration.assumptions.items()
    )
    return Table("Assumptions", ("assumption", "verdict", "deviation at most", "assumed", "measured", "source"), rows)


def failed_table(calibration: Calibration) -> Table | None:
    """Return the failed trials, None if no trial failed."""
    rows = tuple(
        (str(failed.trial), failed.experiment, condition_words(failed.condition), failed.error)
        for failed in calibration.failed
    )
    return Table("Failed trials", ("trial", "experiment", "condition", "error"), rows) if rows else None


def outlier_table(calibration: Calibration) -> Table | None:
    """Return the outliers, None if there are none; all were kept in the fits."""
    rows = tuple(
        (str(one.trial), one.quantity, _figure(one.value), _figure(one.expected), f"{one.deviations:+.1f}")
        for one in calibration.outliers
    )
    return (
        Table("Outliers (kept in the fits)", ("trial", "quantity", "value", "expected", "deviations"), rows)
        if rows
        else None
    )


def all_tables(calibration: Calibration) -> list[Table]:
    """Return the tables that have rows: verdicts, quantities, outliers, failed trials."""
    tables = (
        assumption_table(calibration), quantity_table(calibration), outlier_table(calibration),
        failed_table(calibration),
    )  # fmt: skip
    return [table for table in tables if table is not None and table.rows]


def print_calibration(calibration: Calibration, console: Console) -> None:
    """Print all tables and notes on a terminal."""
    for table in all_tables(calibration):
        shown = RichTable(title=table.title, title_justify="left", box=None, pad_edge=False)
        for head in table.heads:
            shown.add_column(head, justify="right" if head in _FIGURES else "left", overflow="fold")
        for row in table.rows:
            shown.add_row(*map(escape, row))
        console.print(shown)
        console.print()
    for note in calibration.about.notes:
        console.print(f"note: {note}", markup=False)


def as_json(calibration: Calibration) -> dict[str, Any]:
    """Return the calibration as data for JSON, with None for unknown values."""
    tree: dict[str, Any] = _known(asdict(calibration))
    tree["overheads"] = _known(overheads_table(calibration)) or None
    return tree


def _interval(quantity: Quantity) -> str:
    return f"{_figure(quantity.low)} to {_figure(quantity.high)}" if quantity.bounded else ""


def _figure(value: float) -> str:
    """Return a number with four significant digits, without an exponent below 1e9."""
    if not isfinite(value):
        return ""
    text = f"{value:.4g}"
    return f"{value:.0f}" if "e+" in text and abs(value) < 1e9 else text


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.3g} %" if isfinite(fraction) else ""


def _known(value: object) -> Any:
    if isinstance(value, Mapping):
        return {key: _known(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_known(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value
