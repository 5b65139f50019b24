"""Writer of `calibration.toml`: atomic, and with the same bytes for the same calibration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from math import isnan
from pathlib import Path
from textwrap import wrap
from typing import Any

import tomli_w

from testbed.errors import RunError
from testbed.host.whole_files import write_whole
from testbed.study.calibration.model import VERSION, Calibration, OverheadGrids, Quantity

_DIGITS = 9  # significant digits: more than any clock of a lab resolves
_NUMBERS = re.compile(r"\[\n(?:\s+[-+.\w]+,\n)+\s*\]")

_HEAD = """\
# Calibration: quantities that were measured on the nodes of this lab, with their uncertainty.
# Units are in the names: _s wall seconds, _mib 2^20 bytes, _gb 1e9 bytes, _frac fractions of 1.
"""
_COMMENTS = {
    "calibration": "The trials of this calibration; each trial is one condition with fresh guests.",
    "provenance": """The facts of the lab that its nodes announced when the trials began. foreign_cpu_frac: fraction of
        the machine's CPU time that load outside the lab used, median over the trials.""",
    "assumptions": """Assumptions of the papers. held: within 2 %; within: within 10 %; broken: beyond 10 % in at least
        one condition; undecided: more trials are needed. within_frac: the least bound on the deviation that the 95 %
        intervals support.""",
    "overheads": """For `testbed simulate --overheads`. Rows: number of tasks that move at once on one node; columns:
        memory of a task. start_s: from the start command to the first progress of a new job. save_s: time for which a
        task that is saved occupies its node. resume_s: from the restore command to the first progress. transfer_s:
        time to send an image to another node. migration_s: time that a complete migration takes from its job, by the
        mechanism `migration`. parallel: additional seconds of jobs of several tasks, and per 1e9 bytes of a task.
        beside: fraction by which each guest that already runs on the node makes an operation longer; 0: no effect was
        shown. progress: rate of progress relative to the dedicated rate, by yield.""",
    "migration_ways_s": "Complete migrations by each mechanism that was measured, on the grid of [overheads].",
    "live_migration": """mib_per_s: rate at which a live migration sends the memory of one guest. Guests that write to
        their memory meanwhile take longer.""",
    "quantity": """low, high: 95 % interval over n trials (missing: unknown). model: constant, linear over memory,
        shared (tasks at once share the total rate), levels (a line for each number of tasks at once), maximum.
        goodness: median absolute residual relative to the model. outliers: observations beyond 3.5 robust standard
        deviations; they are kept in the fits.""",
    "outlier": "The outliers of the quantities; those of latencies are not listed.",
    "failed": "Failed trials with their errors.",
}


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write the file; if that fails, keep the present file and raise RunError."""
    try:
        write_whole(path, calibration_text(calibration))
    except OSError as error:
        raise RunError(f"{path}: cannot write: {error.strerror}") from error


def calibration_text(calibration: Calibration) -> str:
    """Return the content of the file."""
    tables: dict[str, Any] = {
        "calibration": {"version": VERSION, **asdict(calibration.about)},
        "provenance": calibration.provenance,
        "assumptions": {name: asdict(found) for name, found in calibration.assumptions.items()},
    }
    if calibration.overheads is not None:
        tables["overheads"] = overheads_table(calibration)
        tables["migration_ways_s"] = calibration.overheads.migration_ways_s
        if calibration.overheads.live_mib_per_s is not None:
            tables["live_migration"] = {"mib_per_s": calibration.overheads.live_mib_per_s}
    tables["quantity"] = [_quantity(quantity) for quantity in calibration.quantities]
    tables["outlier"] = [asdict(outlier) for outlier in calibration.outliers]
    tables["failed"] = [asdict(failed) for failed in calibration.failed]
    return "\n".join((_HEAD, *(_block(name, table) for name, table in tables.items() if table)))


def overheads_table(calibration: Calibration) -> dict[str, Any]:
    """Return the table `[overheads]` as the simulator reads it; empty without overheads."""
    grids: OverheadGrids | None = calibration.overheads
    if grids is None:
        return {}
    table = {"concurrent_per": "node", **asdict(grids)}
    del table["migration_ways_s"], table["live_mib_per_s"]
    if calibration.progress is not None:
        curve = calibration.progress  # without measurements, jobs progress at their yield, as the papers assume
        table["progress"] = {
            "yield_frac": curve.yield_frac,
            "serial": curve.serial or curve.yield_frac,
            "parallel": curve.parallel or curve.yield_frac,
        }
    return {key: value for key, value in table.items() if value is not None}


def _quantity(quantity: Quantity) -> dict[str, Any]:
    table = asdict(quantity)
    table["condition"] = table.pop("condition")  # last, because TOML needs sub-tables after plain values
    return table


def _block(name: str, table: object) -> str:
    """Return the TOML of one table, or of one array of tables, after its comment."""
    comment = "".join(f"# {line}\n" for line in wrap(" ".join(_COMMENTS[name].split()), 110))
    if not isinstance(table, list):
        return comment + _compact(tomli_w.dumps({name: _plain(table)}))
    entries = (tomli_w.dumps(_plain(entry)) for entry in table)
    return comment + "\n".join(f"[[{name}]]\n{_compact(_dotted(entry))}" for entry in entries)


def _dotted(entry: str) -> str:
    """Write the condition of an entry with dotted keys, because `[condition]` would be a table of the whole file."""
    head, _, condition = entry.partition("\n[condition]\n")
    return head.rstrip("\n") + "\n" + "".join(f"condition.{line}\n" for line in condition.split("\n") if line)


def _compact(text: str) -> str:
    """Put arrays of plain numbers on one line each; strings cannot match, as they have quotes and no line breaks."""
    return _NUMBERS.sub(lambda array: "[" + ", ".join(re.findall(r"[-+.\w]+", array[0])) + "]", text)


def _plain(value: Any) -> Any:
    """Return a value in TOML's types: without None and NaN, with rounded floats, and with lists for tuples."""
    if isinstance(value, Mapping):
        return {
            str(key): _plain(item)
            for key, item in value.items()
            if item is not None and not (isinstance(item, float) and isnan(item))
        }
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    return value
