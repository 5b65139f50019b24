"""Statistics over traces, as tables and figures show them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from testbed.scheduling.campaign.model import Campaign, FigureSpec, RankingSpec, TableSpec
from testbed.scheduling.campaign.results import Row, Value
from testbed.scheduling.metrics import Spread, spread


@dataclass(frozen=True, slots=True)
class Summary:
    """A table as figures: one row per policy, one column per set of traces and measure, a `Spread` in each cell."""

    columns: list[tuple[str, str]]  # title of the traces, measure
    rows: list[tuple[str, list[Spread | None]]]  # None where there is no result


def chosen_rows(spec: TableSpec | FigureSpec | RankingSpec, rows: Iterable[Row]) -> list[Row]:
    """Return the rows of the policies of a table or figure that meet its conditions."""
    return [
        row
        for row in rows
        if (not spec.policies or row["policy"] in spec.policies)
        and all(condition.holds(row) for condition in spec.where)
    ]


def spread_of(rows: Iterable[Row], measure: str) -> Spread | None:
    """Return the spread of a measure over rows that have it, None when none has."""
    values = [float(row[measure]) for row in rows if row[measure] is not None]  # type: ignore[arg-type]  # a number
    return spread(values) if values else None


def summarise(campaign: Campaign, spec: TableSpec, rows: Sequence[Row]) -> Summary:
    """Return the figures of a table. Policies with several periods or penalties have a row for each."""
    chosen = chosen_rows(spec, rows)
    named = label_rows(chosen, ("policy", "period_s", "overheads"))
    sets = [source for source in campaign.traces if any(row["traces"] == source.name for row in chosen)]
    order = {name: place for place, name in enumerate(spec.policies or campaign.policies)}
    named.sort(key=lambda pair: order[str(pair[0]["policy"])])
    cells: dict[str, dict[Value, list[Row]]] = {}
    for row, name in named:
        cells.setdefault(name, {}).setdefault(row["traces"], []).append(row)
    return Summary(
        [(source.title, measure) for source in sets for measure in spec.measures],
        [
            (name, [spread_of(by_set.get(source.name, ()), measure) for source in sets for measure in spec.measures])
            for name, by_set in cells.items()
        ],
    )


def label_rows(rows: Sequence[Row], columns: Sequence[str]) -> list[tuple[Row, str]]:
    """Return each row with a label: the first column, and those other columns that differ between the rows."""
    first, *others = columns
    shown = [column for column in others if len({row[column] for row in rows} - {None}) > 1]
    return [(row, ", ".join([str(row[first]), *_parts(row, shown)])) for row in rows]


def _parts(row: Row, columns: Iterable[str]) -> list[str]:
    texts = {"period_s": "T = {:g} s", "load": "load {:g}"}
    return [texts.get(column, "{}").format(row[column]) for column in columns if row[column] is not None]
