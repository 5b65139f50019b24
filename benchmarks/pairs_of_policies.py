"""The gain by a suffix of a policy in a campaign: ratios of its results to those without it, on the same traces.

    testbed campaign knows-cost --calibration calibration.toml --out price
    python benchmarks/pairs_of_policies.py price/results.parquet > pairs.md

A row has the median of the ratios over the traces of one set, load and overhead model, with its 95 % interval, and for
how many of them the suffix is better. A policy with a suffix is one of the campaign whose name begins with that of
another one, and goes on with KNOWS= or MOVES=. It is compared with the other one, and with a limit on moves that limits
nothing: against that, what is left is the gain of knowing the cost.
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from intervals import interval_text
from tables import markdown

MEASURES = ("degradation_theorem1", "mean_stretch", "migrations_per_job", "preemptions_per_job")
NO_LIMIT = "/MOVES=999999"
COLUMNS = (
    "overheads",
    "traces",
    "load",
    "policy",
    "suffix",
    "beside",
    "measure",
    "n",
    "ratio",
    "95 % interval",
    "better",
)
SUFFIX = re.compile(r"(/(KNOWS|MOVES)=[^/]*)+$")


def compared(
    found: Mapping[tuple[Any, Any], Mapping[str, Any]], base: Mapping[tuple[Any, Any], Mapping[str, Any]]
) -> list[list[str]]:  # fmt: skip
    """Return the last cells of a row for each measure, of results by seed and week."""
    lines = []
    for measure in MEASURES:
        ratios = [
            found[draw][measure] / base[draw][measure]
            for draw in sorted(found.keys() & base.keys(), key=str) if base[draw][measure]
        ]  # fmt: skip
        if ratios:
            better = str(sum(ratio < 1.0 for ratio in ratios))
            middle = f"{statistics.median(ratios):.3f}"
            lines.append([measure, str(len(ratios)), middle, interval_text(ratios, ".3f"), better])
    return lines


def pairs(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of all policies with a suffix."""
    cases: dict[tuple[Any, ...], dict[str, dict[tuple[Any, Any], Mapping[str, Any]]]] = defaultdict(dict)
    for row in rows:
        case = cases[row["overheads"], row["traces"], row["load"]]
        case.setdefault(row["policy"], {})[row["seed"], row["week"]] = row
    lines = []
    for (overheads, traces, load), by_policy in cases.items():
        for policy, found in by_policy.items():
            suffix = SUFFIX.search(policy)
            if suffix is None:
                continue
            name = policy[: suffix.start()]
            for other in dict.fromkeys((name, name + NO_LIMIT)):
                if other != policy and other in by_policy:
                    about = [overheads, traces, "" if load is None else f"{load:g}", name, suffix[0]]
                    beside = "no suffix" if other == name else NO_LIMIT
                    lines += [[*about, beside, *cells] for cells in compared(found, by_policy[other])]
    return markdown(COLUMNS, lines)


def main() -> None:
    """Print the table of a campaign's results."""
    import polars as pl  # noqa: PLC0415  # an extra

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="results.parquet of a campaign")
    print(pairs(pl.read_parquet(parser.parse_args().results).to_dicts()))


if __name__ == "__main__":
    main()
