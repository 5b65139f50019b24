"""Agreement of two sources on which ranks of a job wait for which: a guess from traffic, and the layer below MPI.

    python benchmarks/waits.py --windows 12 --json waits.jsonl
    python benchmarks/waits.py --topologies linear,ring --ranks 3 --windows 4 --json short.jsonl
    python benchmarks/waits.py --table waits.jsonl

Virtual machines on the two nodes of a lab in a box run an unbalanced job of `patterns`: the i-th rank has a part 1/i of
the work of the first. In each window of time the layer counts for how long each rank has waited for each other one, and
the host guesses the same. Cases come in random order within each repeat. The file gets one line per case; cases that
are in it are skipped.

The rule of the exchange of shares decides which ranks are upstreams of a rank. The table has, over all ranks and
windows:

* the fraction in which both sources have the same set of upstreams
* precision: the fraction of the guessed upstreams that are upstreams
* recall: the fraction of the upstreams that are guessed
* the rank correlation (Spearman) of the seconds over all pairs of neighbours, and the total seconds by both
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from cases import check_disk, missing, options
from guest_lab import ENDLESS_UNITS, Node, box, eatcpu, join, opened, say
from lab import print_machine
from rows import add_rows, read_rows
from scipy.stats import spearmanr
from tables import markdown

from testbed.bus.messages import GuestSpec, ProgramSpec
from testbed.bus.topology import neighbours
from testbed.errors import TestbedError
from testbed.lab.box.state import Journal
from testbed.shares.waits import upstream_ranks

TOPOLOGIES = ("linear", "ring", "mesh", "torus", "all-to-all", "tree")
GUEST_MIB = 144


def members(topology: str, chosen: argparse.Namespace) -> list[GuestSpec]:
    """Return the guests of a job, with unique names."""
    base = eatcpu(GUEST_MIB)
    program = ProgramSpec(
        name="patterns", work_units=ENDLESS_UNITS, units_per_iteration=chosen.units, seed=7, ranks=chosen.ranks,
        topology=topology, imbalance="1/i", message_bytes=chosen.message_bytes,
    )  # fmt: skip
    return [
        msgspec.structs.replace(
            base, guest=f"{base.guest}-r{rank}", task=rank, address=f"10.77.2.{rank + 1}/16",
            program=msgspec.structs.replace(program, rank=rank),
        )
        for rank in range(chosen.ranks)
    ]  # fmt: skip


async def measured(nodes: Sequence[Node], topology: str, chosen: argparse.Namespace) -> list[dict[str, object]]:
    """Run a job; return for each window its length and, by rank, the seconds of both."""
    specs = members(topology, chosen)
    places = [(nodes[rank % len(nodes)], spec) for rank, spec in enumerate(specs)]
    try:
        for node, spec in places:
            await node.driver.start(spec, 1.0)
        await join(places)
        for node, spec in places:
            await node.progress(spec.guest)
            await node.driver.guess_waits(spec.guest, [each.address for each in specs])
        await asyncio.sleep(chosen.window_s)  # the layer and the guess both count in this time
        found, before, before_s = [], seen(places), asyncio.get_running_loop().time()
        for _ in range(chosen.windows):
            await asyncio.sleep(chosen.window_s)
            after, after_s = seen(places), asyncio.get_running_loop().time()
            found.append({"seconds": after_s - before_s, **{what: differences(before[what], after[what])
                                                            for what in before}})  # fmt: skip
            before, before_s = after, after_s
        return found
    finally:
        for node, spec in places:
            await node.driver.stop(spec.guest)


def seen(places: Sequence[tuple[Node, GuestSpec]]) -> dict[str, list[list[float]]]:
    """Return the waits so far, of each rank for each rank."""
    samples = [node.sample(spec.guest) for node, spec in places]
    return {
        "layer": [list(sample.waits_s) for sample in samples],
        "guess": [list(sample.guessed_waits_s) for sample in samples],
    }


def differences(before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the difference, by rank."""
    return [[new - old for old, new in zip(*rows, strict=True)] for rows in zip(before, after, strict=True)]


def agreement(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the cells of the table for the cases of one topology."""
    same = windows = right = guessed = known = 0
    pairs: list[tuple[float, float]] = []
    for row in rows:
        for window in row["windows"]:
            for rank, (layer_s, guess_s) in enumerate(zip(window["layer"], window["guess"], strict=True)):
                truth, guess = (
                    set(upstream_ranks([0.0] * len(each), each, window["seconds"])) for each in (layer_s, guess_s)
                )
                windows, same = windows + 1, same + (truth == guess)
                right, guessed, known = right + len(truth & guess), guessed + len(guess), known + len(truth)
                near = neighbours(row["topology"], rank, row["ranks"])
                pairs += [(layer_s[source], guess_s[source]) for source in near]
    correlation = float(spearmanr(*zip(*pairs, strict=True)).statistic)
    layer_s, guess_s = (sum(each) for each in zip(*pairs, strict=True))
    return [
        str(windows), part(same, windows), part(right, guessed), part(right, known), f"{correlation:.2f}",
        f"{layer_s:.1f}", f"{guess_s:.1f}",
    ]  # fmt: skip


def part(count: int, of: int) -> str:
    return f"{count / of:.0%} ({count} of {of})" if of else "none"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the agreement by topology and number of ranks."""
    lines = []
    cases = sorted({(TOPOLOGIES.index(row["topology"]), row["ranks"]) for row in rows})
    for number, ranks in cases:
        own = [row for row in rows if (row["topology"], row["ranks"]) == (TOPOLOGIES[number], ranks)]
        lines.append([TOPOLOGIES[number], str(ranks), *agreement(own)])
    found = ("rank windows", "same upstreams", "precision", "recall", "rank corr.", "layer s", "guess s")
    return markdown(("topology", "ranks", *found), lines)


async def run(journal: Journal, chosen: argparse.Namespace, cases: Sequence[dict[str, Any]]) -> int:
    """Run cases, and add their lines to the file; return the number of those that failed."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="dfrs-waits-") as name:
        async with opened(journal, "a", Path(name)) as one, opened(journal, "b", Path(name)) as two:
            for case in cases:
                repeat, topology, _ = case.values()
                try:
                    windows = await measured((one, two), topology, chosen)
                except (TestbedError, TimeoutError) as error:  # the machine may be too busy
                    say(f"{repeat}: {topology}: failed: {error}")
                    failed += 1
                    continue
                add_rows(chosen.json, [case | {
                    "units": chosen.units, "message_bytes": chosen.message_bytes, "window_s": chosen.window_s,
                    "windows": windows, "load_1_min": os.getloadavg()[0],
                }])  # fmt: skip
                say(f"{repeat}: {topology}")
    return failed


def main() -> None:
    """Run the missing cases, and print the table."""
    parser = options(__doc__, "waits.jsonl")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--topologies", default=",".join(TOPOLOGIES))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument(
        "--units", type=int, default=4000, help="work of the first rank in an iteration; 8000 take a second"
    )
    parser.add_argument("--message-bytes", type=int, default=5000)
    parser.add_argument("--windows", type=int, default=12, help="windows of each case")
    parser.add_argument("--window-s", type=float, default=5.0)
    chosen = parser.parse_args()
    if chosen.table is None:
        if unknown := set(chosen.topologies.split(",")) - set(TOPOLOGIES):
            parser.error(f"--topologies = {', '.join(sorted(unknown))}: expected of {','.join(TOPOLOGIES)}")
        if chosen.ranks < 2 or chosen.windows < 1 or not chosen.window_s > 0:
            parser.error("--ranks, --windows, --window-s: expected at least 2, 1, and more than 0")
        check_disk()
        print_machine()
        cases = list(missing(chosen.json, [
            {"repeat": chosen.first + number, "topology": topology, "ranks": chosen.ranks}
            for number in range(chosen.repeats) for topology in chosen.topologies.split(",")
        ], "repeat"))  # fmt: skip
        failed = 0
        if cases:
            with box(memory_mib=GUEST_MIB * chosen.ranks + 256) as journal:
                failed = asyncio.run(run(journal, chosen, cases))
        print(table(read_rows(chosen.json)))
        if failed:
            raise SystemExit(f"{failed} of {len(cases)} cases failed: the next call repeats them")
    else:
        print(table(read_rows(chosen.table)))


if __name__ == "__main__":
    main()
