"""The gain by a suffix of a policy in a campaign: ratios of its results to those without it, on the same traces.

    testbed campaign knows-cost --calibration calibration.toml --out price
    python benchmarks/pairs_of_policies.py price/results.parquet > pairs.md

A row has the median of the ratios over the traces of one set, load and overhead model, with its 95 % interval, and for
how many of them the suffix is better. A policy with a suffix is one of the campaign whose name begins with that of
another one, and goes on with KNOWS= or MOVES=.
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
COLUMNS = ("overheads", "traces", "load", "policy", "suffix", "measure", "n", "ratio", "95 % interval", "better")
SUFFIX = re.compile(r"(/(KNOWS|MOVES)=[^/]*)+$")


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
            plain = by_policy.get(policy[: suffix.start()]) if suffix else None
            if suffix is None or plain is None:
                continue
            for measure in MEASURES:
                ratios = [
                    found[draw][measure] / plain[draw][measure]
                    for draw in sorted(found.keys() & plain.keys(), key=str) if plain[draw][measure]
                ]  # fmt: skip
                if ratios:
                    lines.append([
                        overheads, traces, "" if load is None else f"{load:g}", policy[: suffix.start()], suffix[0],
                        measure, str(len(ratios)), f"{statistics.median(ratios):.3f}", interval_text(ratios, ".3f"),
                        str(sum(ratio < 1.0 for ratio in ratios)),
                    ])  # fmt: skip
    return markdown(COLUMNS, lines)


def main() -> None:
    """Print the table of a campaign's results."""
    import polars as pl  # noqa: PLC0415  # an extra

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="results.parquet of a campaign")
    print(pairs(pl.read_parquet(parser.parse_args().results).to_dicts()))


if __name__ == "__main__":
    main()
