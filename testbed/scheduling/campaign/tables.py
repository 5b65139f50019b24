"""Tables of a campaign as text, CSV and LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from testbed.host.whole_files import csv_text
from testbed.scheduling.campaign.model import RankingSpec, TableSpec
from testbed.scheduling.campaign.summary import Summary
from testbed.scheduling.metrics import Spread
from testbed.scheduling.workload.files import write_text

_HEADS = {"mean-std-max": ("avg.", "std.", "max"), "mean-max": ("avg. (max)",), "mean": ("avg.",)}
_LATEX = {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"} | {
    char: f"\\{char}" for char in "&%$#_{}"
}


def write_table(folder: Path, spec: TableSpec, summary: Summary) -> str:
    """Write NAME.txt, NAME.csv and NAME.tex, and return the text. Raises UserError."""
    text = as_text(spec, summary)
    write_text(folder / f"{spec.name}.txt", text)
    write_text(folder / f"{spec.name}.csv", as_csv(summary))
    write_text(folder / f"{spec.name}.tex", as_latex(spec, summary))
    return text


def as_text(spec: TableSpec, summary: Summary) -> str:
    """Return a table in plain characters: the title, two header lines, one line per policy."""
    lines = [spec.title, ""]
    groups, body = _cells(spec, summary)
    heads = ["Algorithm", *(head for _ in summary.columns for head in _HEADS[spec.cell])]
    widths = widths_of([heads, *body])
    span = len(_HEADS[spec.cell])
    for place, group in enumerate(groups):
        first = 1 + place * span
        missing = len(group) - (sum(widths[first : first + span]) + 2 * (span - 1))
        widths[first + span - 1] += max(missing, 0)
    over = [" " * widths[0]]
    for place, group in enumerate(groups):
        first = 1 + place * span
        over.append(group.center(sum(widths[first : first + span]) + 2 * (span - 1)))
    lines += ["  ".join(over).rstrip(), *aligned([heads, *body], widths)]
    counts = sorted({cell.count for _, cells in summary.rows for cell in cells if cell is not None})
    if counts:
        lines += ["", f"over {counts[0]} traces" if len(counts) == 1 else f"over {counts[0]} to {counts[-1]} traces"]
    return "\n".join(lines) + "\n"


def widths_of(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of each column of a table in plain characters."""
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def aligned(rows: Sequence[Sequence[str]], widths: Sequence[int] = ()) -> list[str]:
    """Return rows as lines of columns, the first to the left, the others to the right; see `widths_of`."""
    widths = widths or widths_of(rows)
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]


def as_csv(summary: Summary) -> str:
    """Return one line per policy, set of traces and measure, with all digits."""
    rows = [
        [name, title, measure, cell.count, cell.mean, None if cell.count == 1 else cell.std, cell.maximum]
        for name, cells in summary.rows
        for (title, measure), cell in zip(summary.columns, cells, strict=True)
        if cell is not None
    ]
    return csv_text(["policy", "traces", "measure", "count", "mean", "std", "max"], rows)


def as_latex(spec: TableSpec, summary: Summary) -> str:
    """Return a `table` environment that needs the package booktabs."""
    groups, body = _cells(spec, summary)
    span = len(_HEADS[spec.cell])
    heads = " & ".join(tex(head) for _ in groups for head in _HEADS[spec.cell])
    over = " & ".join(rf"\multicolumn{{{span}}}{{c}}{{{tex(group)}}}" for group in groups)
    rules = "".join(rf"\cmidrule(lr){{{2 + place * span}-{1 + (place + 1) * span}}}" for place in range(len(groups)))
    rows = [" & ".join(map(tex, row)) + r" \\" for row in body]
    lines = [rf" & {over} \\", rules, rf"Algorithm & {heads} \\", r"\midrule", *rows]
    return latex_table(spec, span * len(groups), lines)


def latex_table(spec: TableSpec | RankingSpec, numbers: int, lines: Sequence[str]) -> str:
    """Return lines as a `table` environment with one column of text and `numbers` columns of numbers."""
    head = [
        r"\begin{table}", r"\centering", rf"\caption{{{tex(spec.title)}}}", rf"\label{{tab:{spec.name}}}",
        rf"\begin{{tabular}}{{l{'r' * numbers}}}", r"\toprule",
    ]  # fmt: skip
    return "\n".join([*head, *lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def _cells(spec: TableSpec, summary: Summary) -> tuple[list[str], list[list[str]]]:
    """Return the titles of the groups of columns, and the rows as texts."""
    many = len({title for title, _ in summary.columns}) > 1
    groups = [
        f"{title}: {measure}" if many and len(spec.measures) > 1 else title if many else measure
        for title, measure in summary.columns
    ]
    return groups, [[name, *(text for cell in cells for text in _cell(spec, cell))] for name, cells in summary.rows]


def _cell(spec: TableSpec, cell: Spread | None) -> list[str]:
    if cell is None:
        return ["-"] * len(_HEADS[spec.cell])
    mean, maximum = (f"{value:,.{spec.digits}f}" for value in (cell.mean, cell.maximum))
    if spec.cell == "mean":
        return [mean]
    if spec.cell == "mean-max":
        return [f"{mean} ({maximum})"]
    return [mean, "-" if cell.count == 1 else f"{cell.std:,.{spec.digits}f}", maximum]


def tex(text: str) -> str:
    """Return plain text, escaped for LaTeX."""
    return "".join(_LATEX.get(char, char) for char in text)
