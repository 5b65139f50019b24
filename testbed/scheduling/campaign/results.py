"""Results as rows: one per simulation, with units in the names of the columns; as Parquet and as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from testbed.errors import RunError, UserError
from testbed.host.whole_files import csv_text, draft_of
from testbed.scheduling.campaign.model import MEASURES, Campaign
from testbed.scheduling.campaign.plan import Asked, Plan, Simulation
from testbed.scheduling.campaign.sweep import Results
from testbed.scheduling.workload.files import write_text

Value = str | int | float | None
Row = dict[str, Value]

_TEXTS = ("trace", "traces", "file", "policy", "overheads", "code")
_WHOLE = ("seed", "week", "jobs", "nodes")
COLUMNS = (
    "trace", "traces", "seed", "week", "file", "load", "jobs", "nodes", "policy", "period_s", "penalty_s",
    "overheads", "tau_s", "node_memory_gb", *MEASURES, "code",
)  # fmt: skip


def rows_of(plan: Plan, results: Results) -> list[Row]:
    """Return one row per completed simulation, in the order of traces, then of policies.

    Degradations are None where the bound is missing. The degradation factor [IPDPS] is the maximum stretch over the
    least one of all algorithms on the trace, and None where a simulation of the trace is missing or failed.
    """
    return [row for asked in plan.asked for row in _of_trace(plan.sets.campaign, asked, results)]


def _of_trace(campaign: Campaign, asked: Asked, results: Results) -> list[Row]:
    bounds: dict[str, float | None] = {kind: results.bounds.get(key) for key, kind in asked.bounds}
    done = [simulation for simulation in asked.simulations if simulation.key in results.measures]
    rows = [_row(campaign, asked, simulation, bounds, results) for simulation in done]
    for overheads in {row["overheads"] for row in rows}:
        same = [row for row in rows if row["overheads"] == overheads]
        wanted = sum(simulation.setting.overheads.name == overheads for simulation in asked.simulations)
        if len(same) == wanted:
            best = min(_number(row["max_stretch"]) for row in same)
            for row in same:
                row["degradation_factor"] = _number(row["max_stretch"]) / best
    return rows


def _row(
    campaign: Campaign, asked: Asked, simulation: Simulation, bounds: dict[str, float | None], results: Results
) -> Row:  # fmt: skip
    instance, setting = asked.instance, simulation.setting
    figures = results.measures[simulation.key]
    row: Row = dict.fromkeys(COLUMNS)
    row |= {
        "trace": instance.label,
        "traces": instance.traces,
        "seed": instance.seed,
        "week": instance.week,
        "file": None if instance.file is None else instance.file.name,
        "load": instance.load,
        "nodes": instance.nodes,
        "policy": setting.policy,
        "period_s": setting.period_s,
        "penalty_s": setting.penalty_s,
        "overheads": setting.overheads.name,
        "tau_s": campaign.tau_s,
        "node_memory_gb": campaign.node_memory_gb,
        "code": results.code[simulation.key],
        **figures,
    }
    for kind, bound in bounds.items():
        row[f"bound_{kind}"] = bound
        row[f"degradation_{kind}"] = None if bound is None else _number(figures["max_stretch"]) / bound
    return row


def _number(value: Value) -> float:
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def write_results(folder: Path, rows: Sequence[Row]) -> None:
    """Write `results.csv` and `results.parquet` to a folder, each atomically. Raises UserError."""
    write_text(folder / "results.csv", csv_text(COLUMNS, ([row[column] for column in COLUMNS] for row in rows)))
    _write_parquet(folder / "results.parquet", rows)


def _write_parquet(path: Path, rows: Sequence[Row]) -> None:
    try:
        import pyarrow as pa  # noqa: PLC0415  # an extra, and slow to import
        import pyarrow.parquet as pq  # noqa: PLC0415  # an extra, and slow to import
    except ImportError as error:
        raise RunError("Parquet needs pyarrow: install the extra campaign") from error
    schema = pa.schema([(column, _arrow_type(pa, column)) for column in COLUMNS])
    table = pa.table({column: pa.array([row[column] for row in rows], schema.field(column).type) for column in COLUMNS})
    try:
        with draft_of(path) as draft:
            pq.write_table(table, draft, compression="zstd")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error}") from error


def _arrow_type(pa: object, column: str) -> object:
    kind = "string" if column in _TEXTS else "int64" if column in _WHOLE else "float64"
    return getattr(pa, kind)()
