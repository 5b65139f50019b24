"""Compare the printed tables of [RR] with a campaign: which values agree within the sampling error, and which do not.

    testbed campaign rr7659-catalogue --out catalogue            # hours, resumable
    python benchmarks/against_print.py catalogue --keep ours.csv.xz --json print.jsonl > page.md
    python benchmarks/against_print.py ours.csv.xz > page.md     # the same page, without the campaign

The synthetic traces of [RR] are not available: theirs and ours are 100 draws each from the same model. So a mean of
synthetic traces agrees if it differs by no more than 1.96 standard errors of the difference. Our standard error comes
from a bootstrap over seeds. Theirs comes from the printed standard deviation, or is assumed equal to ours if none is
printed. Standard deviations are compared in the same way, with both errors from our bootstrap. Maxima of 100 draws are
shown and not judged. The weeks of HPC2N are the same in both but for five of 202,876 jobs, so a value of them agrees
if it is within one per cent, or rounds to the printed value. The printed EASY is compared with EASY and with EASY/2011,
which backfills only beside the reservation; its degradations are compared with both bounds.
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.errors import UserError

Floats = NDArray[np.float64]

PRINTED = Path(__file__).parent / "printed/rr7659.csv"
RESAMPLES = 1000
BOUNDS = {"fluid": "degradation_fluid", "Theorem 1": "degradation_theorem1"}
NAMES = {"EASY": ("EASY", "EASY/2011")}
SETS = {"real-world": ("hpc2n", 0.0), "unscaled": ("unscaled", 0.0), "scaled": ("scaled", 0.0),
        "scaled, load 0.7 and more": ("scaled", 0.7)}  # fmt: skip
CLOSE_FRAC = 0.01
DECIMALS = {"2": 1, "3": 2, "4": 3, "5": 1, "6": 1, "7": 1, "8": 2, "9": 2, "10": 2}  # that a table prints
INSTANCES = {"hpc2n": 182, "unscaled": 100, "scaled": 900}  # of a whole campaign
KEYS = ("traces", "seed", "week", "load", "policy")
DIGITS = 7  # of the results that are kept; at most five are printed


class Compared(NamedTuple):
    """A printed value and ours; `error` is the standard error of the difference, NaN if the value is not judged."""

    table: str
    traces: str
    algorithm: str
    measure: str
    statistic: str
    ours_of: str
    printed: float
    ours: float
    error: float
    agrees: bool | None


def read_printed() -> list[dict[str, str]]:
    """Read the printed values."""
    with PRINTED.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def measures_of(printed: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the columns of results that the printed values compare with."""
    names = {each["measure"]: None for each in printed if each["measure"] != "degradation"}
    return [*BOUNDS.values(), *names]


def read_results(path: Path) -> list[dict[str, str]]:
    """Read the results of a campaign's folder, or a file that `--keep` wrote; raise `UserError` without them."""
    source = path / "results.csv" if path.is_dir() else path
    try:
        with lzma.open(source, "rt", newline="") if source.suffix == ".xz" else source.open(newline="") as file:
            return list(csv.DictReader(file))
    except (OSError, lzma.LZMAError) as error:
        raise UserError(f"{source}: {error}: expected results of a campaign") from error


def keep(rows: Sequence[Mapping[str, str]], path: Path) -> None:
    """Write the compared columns of all results, with `DIGITS` significant digits."""
    measures = measures_of(read_printed())
    with lzma.open(path, "wt", preset=9, newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*KEYS, *measures])
        for row in rows:
            values = [f"{float(row[name]):.{DIGITS}g}" if row.get(name) else "" for name in measures]
            writer.writerow([*(row[key] for key in KEYS), *values])


def check_whole(rows: Sequence[Mapping[str, str]]) -> None:
    """Raise `UserError` unless each printed algorithm has results for all instances of its traces."""
    found: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        found[row["traces"], row["policy"]] += 1
    for each in read_printed():
        traces = SETS[each["traces"]][0]
        for policy in NAMES.get(each["algorithm"], (each["algorithm"],)):
            if found[traces, policy] != INSTANCES[traces]:
                raise UserError(
                    f"{policy} on traces {traces}: {found[traces, policy]} results: expected {INSTANCES[traces]}"
                )


def statistic_of(name: str, values: Floats) -> float:
    """Return the mean, the sample standard deviation or the maximum."""
    if name == "mean":
        return float(values.mean())
    return float(values.std(ddof=1)) if name == "std" else float(values.max())


def bootstrap_error(name: str, by_seed: Sequence[Floats]) -> float:
    """Return the standard error of a statistic over seeds."""
    draw = np.random.default_rng(1)
    found = []
    for _ in range(RESAMPLES):
        chosen = draw.integers(0, len(by_seed), len(by_seed))
        found.append(statistic_of(name, np.concatenate([by_seed[index] for index in chosen])))
    return float(np.std(found, ddof=1))


def compare(rows: Sequence[Mapping[str, str]]) -> list[Compared]:
    """Compare all printed values for which the campaign has results."""
    cases: dict[tuple[str, str], list[Mapping[str, str]]] = defaultdict(list)
    for row in rows:
        cases[row["traces"], row["policy"]].append(row)
    printed = read_printed()
    deviation = {
        (each["table"], each["traces"], each["algorithm"]): float(each["value"])
        for each in printed if each["statistic"] == "std"
    }  # fmt: skip
    found = []
    for each in printed:
        traces, least_load = SETS[each["traces"]]
        columns = BOUNDS if each["measure"] == "degradation" else {each["measure"]: each["measure"]}
        for policy in NAMES.get(each["algorithm"], (each["algorithm"],)):
            own = [row for row in cases[traces, policy] if not least_load or float(row["load"]) >= least_load]
            for label, column in columns.items():
                values = [(row["seed"] or row["week"], float(row[column])) for row in own if row.get(column)]
                if values:
                    std = deviation.get((each["table"], each["traces"], each["algorithm"]))
                    ours_of = f"{policy}, {label}" if columns is BOUNDS else policy
                    found.append(judged(each, ours_of, values, std))
    return found


def judged(
    each: Mapping[str, str], ours_of: str, values: Sequence[tuple[str, float]], printed_std: float | None
) -> Compared:
    """Compare one value with results by seed or week."""
    name, printed = each["statistic"], float(each["value"])
    numbers = np.array([value for _, value in values])
    ours = statistic_of(name, numbers)
    place = (each["table"], each["traces"], each["algorithm"], each["measure"], name, ours_of, printed, ours)
    if each["traces"] == "real-world":
        close = abs(ours - printed) <= CLOSE_FRAC * abs(printed) or round(ours, DECIMALS[each["table"]]) == printed
        return Compared(*place, 0.0, close)
    if name == "max":
        return Compared(*place, float("nan"), None)
    by_seed: dict[str, list[float]] = defaultdict(list)
    for seed, value in values:
        by_seed[seed].append(value)
    own = bootstrap_error(name, [np.array(some) for some in by_seed.values()])
    theirs = own
    if name == "mean" and printed_std is not None:
        ratio = printed_std / numbers.std(ddof=1) if numbers.std() > 0.0 else 1.0
        theirs = own * ratio  # values of one seed at several loads are not independent draws
    error = float(np.hypot(own, theirs))
    rounding = 0.5 * 10.0 ** -DECIMALS[each["table"]]
    return Compared(*place, error, abs(ours - printed) <= 1.96 * error + rounding)


def page(found: Sequence[Compared]) -> str:
    """Return the summary and all rows as Markdown."""
    lines = ["| table | traces | measure | ours | values judged | agree |", "|---|---|---|---|---|---|"]
    groups: dict[tuple[str, str, str, str], list[Compared]] = defaultdict(list)
    for each in found:
        label = each.ours_of.rpartition(", ")[2] if each.measure == "degradation" else ""
        groups[each.table, each.traces, each.measure, label].append(each)
    for (table, traces, measure, label), some in groups.items():
        told = [each.agrees for each in some if each.agrees is not None]
        share = f"{sum(told)} ({sum(told) / len(told):.0%})" if told else ""
        lines.append(f"| {table} | {traces} | {measure} | {label} | {len(told)} | {share} |")
    columns = (
        "table",
        "traces",
        "algorithm",
        "measure",
        "statistic",
        "printed",
        "ours",
        "of",  # a bound, or another name than the printed one
        "s.e. of difference",
        "",
    )
    lines += ["", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for each in found:
        error = "" if not each.error > 0.0 else f"{each.error:,.3g}"
        mark = "" if each.agrees is None else "agrees" if each.agrees else "**differs**"
        lines.append(
            f"| {each.table} | {each.traces} | {each.algorithm.replace('*', chr(92) + '*')} | {each.measure} | "
            f"{each.statistic} | {each.printed:,g} | {float(f'{each.ours:.4g}'):,.10g} | {_other_name(each)} | "
            f"{error} | {mark} |"
        )
    return "\n".join(lines)


def _other_name(each: Compared) -> str:
    """Return what else the name of our value says than that of the printed one, for Markdown."""
    name, *bound = each.ours_of.split(", ")
    return ", ".join((*([] if name == each.algorithm else [name]), *bound)).replace("*", chr(92) + "*")


def main() -> None:
    """Read the results, compare them, and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path, metavar="CAMPAIGN", help="folders of campaigns, or kept files")
    parser.add_argument("--keep", type=Path, metavar="FILE.csv.xz", help="write the compared columns of the results")
    parser.add_argument("--json", type=Path, metavar="FILE", help="a line of JSON for each value")
    parser.add_argument("--whole", action="store_true", help="fail unless all results of the campaign are there")
    options = parser.parse_args()
    try:
        rows = [row for path in options.results for row in read_results(path)]
        if options.whole:
            check_whole(rows)
    except UserError as error:
        sys.exit(f"against_print: {error}")
    if options.keep:
        keep(rows, options.keep)
    found = compare(rows)
    if options.json:
        with options.json.open("w", encoding="utf-8") as file:
            for each in found:
                line = each._asdict() | {"error": each.error if np.isfinite(each.error) else None}
                file.write(json.dumps(line) + "\n")
    print(page(found))


if __name__ == "__main__":
    main()
