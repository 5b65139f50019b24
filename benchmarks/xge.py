"""Waits by queue on the load of the XGE paper's site: under XGE, and under other policies on the same jobs.

    python benchmarks/xge.py --seeds 20 --json xge.jsonl
    python benchmarks/xge.py --seeds 8 --sensitivity --json xge.jsonl
    python benchmarks/xge.py --seeds 20 --overheads calibration.toml --json xge.jsonl
    python benchmarks/xge.py --seeds 20 --overheads benchmarks/xge-hour/paper.toml --json xge.jsonl
    python benchmarks/xge.py --table xge.jsonl

The jobs are those of `testbed trace generate marc`; docs/xge.md has their assumptions. The cluster has 85 nodes of
four cores. FCFS and EASY give each task a core: 340 nodes, each filled by one task. The parallel partition of XGE is as
large as the fraction of the work that parallel jobs have. With `-xge`, parallel jobs of up to an hour are urgent; the
jobs are the same.

A trace begins with weeks that are not measured, because the measured ones must not begin on an empty cluster: the
longest jobs run for ten days. Submissions continue for another week after the measured ones, because later jobs may
overtake earlier ones. The measures cover the jobs that were submitted in the measured weeks, whenever they end.

The wait of a job is the time from its submission until it is first selected to run. That of a parallel job under XGE
goes on until it works, which includes the suspension of serial guests and its own start, as in the paper: it is never
paused, so it is its delay. The delay of a job is its turnaround less its run time: the wait, suspensions, penalties,
and the loss by running at less than full speed. Short parallel jobs are not among those of their queue. Medians over
seeds have 95 % intervals by ranks. The file gets one line per simulation; simulations in it are skipped.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cases import check_disk
from intervals import interval, level_text
from lab import print_machine
from rows import add_rows, read_rows

from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.simulation.overheads import DEFAULT_NODE_MEMORY_GB, Overheads
from testbed.scheduling.simulation.overheads_parser import parse_overheads
from testbed.scheduling.simulation.simulate import simulate
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.load import cpu_load
from testbed.scheduling.workload.marc import CORES_PER_NODE, JOBS_BY_CORES, NODES, QUEUES, MarcModel, marc_trace
from testbed.scheduling.workload.segments import WEEK_S

URGENT_S = 3600.0
PARTITION = 0.36  # of the nodes, for parallel jobs: their part of the work
SHORT = "short parallel"  # the jobs that `-xge` makes urgent


class Way(NamedTuple):
    """A way to schedule the jobs: the policy, and the properties of jobs that the scheduler knows."""

    policy: str
    urgent: bool = False
    knows_run_times: bool = False


WAYS = {
    "FCFS": Way("FCFS"),
    "EASY, limits": Way("EASY"),
    "EASY, run times": Way("EASY", knows_run_times=True),
    "XGE/LEND=no": Way("XGE/LEND=no"),
    "XGE": Way("XGE"),
    "XGE, -xge": Way("XGE/LONG=864000", urgent=True),  # only jobs of `serial_long` are suspended, as in the paper
    "XGE, -xge, all": Way("XGE", urgent=True),  # any serial job
    "XGE, -xge, none": Way("XGE/LONG=999999999999", urgent=True),  # none: urgent jobs only come first
    "DFRS": Way("GreedyPM */per/OPT=MIN/MINVT=600"),
    "DFRS, no period": Way("GreedyPM */OPT=MIN"),
}
ORDERED = ("XGE/LEND=no", "XGE", "XGE, -xge")  # the ways of the sensitivity analysis
CASES = (
    "", "farm_jobs=20", "farm_jobs=50", "farm_jobs=200", "parallel_farm_jobs=5", "cv=1", "cv=4", "PARALLEL=0.25",
    "PARALLEL=0.3", "PARALLEL=0.5", "rate=0.85", "rate=1.15", "daily=0,weekend=1",
)  # fmt: skip

# Minutes of Tables II and IV: the mean, and the maximum.
PAPER = {
    "parallel": (111.0, 12434.0), "parallel_long": (610.0, 9199.0), "serial": (109.0, 8176.0),
    "serial_long": (356.0, 7100.0), "serial_low": (16.0, 8726.0),
    "2 cores": (166.2, 3109.0), "4 cores": (52.4, 12433.7), "8 cores": (75.0, 5698.9), "16 cores": (238.2, 1503.6),
    "32 cores": (222.3, 723.0),
}  # fmt: skip
NAMES = tuple(queue.name for queue in QUEUES)
GROUPS = (*NAMES, SHORT, *(f"{cores} cores" for cores in JOBS_BY_CORES))


class Span(NamedTuple):
    """Weeks of a trace: before, in and after the measured period."""

    before: int
    measured: int
    after: int


def jobs_of(seed: int, case: str, span: Span) -> list[Job]:
    """Return the jobs of a case; short parallel ones are urgent."""
    changed = {key: float(value) for key, value in _pairs(case) if key != "PARALLEL"}
    return marc_trace(seed, sum(span), MarcModel(urgent_s=URGENT_S, **changed))


def _pairs(case: str) -> Iterator[tuple[str, str]]:
    for part in filter(None, case.split(",")):
        key, _, value = part.partition("=")
        yield key, value


def measured(jobs: Sequence[Job], case: str, name: str, span: Span, overheads: Overheads) -> dict[str, Any]:
    """Simulate one way, and return its measures; times in minutes."""
    way = WAYS[name]
    told, nodes, memory_gb = list(jobs), NODES, DEFAULT_NODE_MEMORY_GB
    policy = way.policy
    if policy.startswith("XGE"):
        policy += f"/PARALLEL={dict(_pairs(case)).get('PARALLEL', PARTITION)}"
        told = [replace(job, urgent=job.urgent and way.urgent) for job in jobs]
    elif policy in ("FCFS", "EASY"):
        nodes, memory_gb = NODES * CORES_PER_NODE, DEFAULT_NODE_MEMORY_GB * jobs[0].mem_req_frac
        told = [replace(job, cpu_need_frac=1.0, mem_req_frac=1.0) for job in jobs]
        if way.knows_run_times:
            told = [replace(job, estimate_s=None) for job in told]
    began_s = time.process_time()
    run = simulate(told, nodes, parse(policy), overheads, node_memory_gb=memory_gb)
    took_s = time.process_time() - began_s
    begin_s, end_s = span.before * WEEK_S, (span.before + span.measured) * WEEK_S
    counted = (run.submit_s >= begin_s) & (run.submit_s < end_s)
    delay_min = (run.end_s - run.submit_s - run.run_time_s) / 60
    parallel = np.array([job.tasks > 1 for job in jobs])
    until_work = parallel & policy.startswith("XGE")
    wait_min = np.where(until_work, delay_min, (run.start_s - run.submit_s) / 60)
    stretches = run.stretches()
    groups = {}
    for group, chosen in members(jobs).items():
        rows = counted & chosen
        if rows.any():
            groups[group] = {
                "jobs": int(rows.sum()), "wait": float(wait_min[rows].mean()), "most": float(wait_min[rows].max()),
                "delay": float(delay_min[rows].mean()), "stretch": float(stretches[rows].mean()),
                "suspensions": int(run.preemptions[rows].sum()),
            }  # fmt: skip
    return {
        "groups": groups, "policy": run.policy,
        "mean_stretch": float(stretches[counted].mean()), "max_stretch": float(stretches[counted].max()),
        "suspensions": int(run.preemptions[counted].sum()), "migrations": int(run.migrations[counted].sum()),
        "load": cpu_load([job for job, each in zip(jobs, counted, strict=True) if each], NODES),
        "jobs": int(counted.sum()), "decisions": run.decisions, "took_s": took_s, "load_1_min": os.getloadavg()[0],
    }  # fmt: skip


def members(jobs: Sequence[Job]) -> dict[str, np.ndarray]:
    """Return which jobs are in each group."""
    queue = np.array([job.job_class for job in jobs])
    tasks = np.array([job.tasks for job in jobs])
    short = np.array([job.urgent for job in jobs])
    found = {name: (queue == name) & ~short for name in NAMES}
    found[SHORT] = short
    return found | {f"{cores} cores": tasks == cores for cores in JOBS_BY_CORES}


# --- tables


Rows = Sequence[dict[str, Any]]


def of(rows: Rows, case: str, name: str) -> dict[int, dict[str, Any]]:
    """Return the rows of a case and a way by seed."""
    return {row["seed"]: row for row in rows if (row["case"], row["way"]) == (case, name)}


def values(rows: dict[int, dict[str, Any]], group: str, measure: str) -> list[float]:
    """Return a measure of a group for each seed that has jobs of it."""
    return [row["groups"][group][measure] for row in rows.values() if group in row["groups"]]


def cell(found: Sequence[float]) -> str:
    """Return the median with its interval, and the level of the interval if that is not 95 %."""
    if not found:
        return "none"
    low, high = interval(found)
    return f"{number(statistics.median(found))} ({number(low)} to {number(high)}{level_text(len(found))})"


def cells(rows: dict[int, dict[str, Any]], group: str, measure: str) -> str:
    """Return the median of a measure of a group over the seeds that have jobs of it, and their number if not all."""
    found = values(rows, group, measure)
    return cell(found) if len(found) == len(rows) else f"{cell(found)}, n = {len(found)}"


def number(value: float) -> str:
    """Return a number with as many digits as are significant."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 1 else f"{value:.2g}"


def waits(rows: Rows, measure: str, groups: Sequence[str], *, paper: int | None) -> list[str]:
    """Return a table of a measure by group and way, with the paper's values."""
    ways = [name for name in WAYS if of(rows, "", name)]
    lines = [line(["jobs of", *(["paper"] if paper is not None else []), *ways])]
    lines.append(line(["---"] * (len(ways) + 1 + (paper is not None))))
    for group in groups:
        found = [cells(of(rows, "", name), group, measure) for name in ways]
        shown = [] if paper is None else [number(PAPER[group][paper]) if group in PAPER else ""]
        lines.append(line([group, *shown, *found]))
    return lines


def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def whole(rows: Rows) -> list[str]:
    """Return the table of the measures over all jobs."""
    lines = [line(["way", "policy", "seeds", "load", "mean stretch", "suspensions", "migrations", "CPU s"])]
    lines.append(line(["---"] * 8))
    for name in WAYS:
        if found := list(of(rows, "", name).values()):
            figures = [
                cell([row[key] for row in found])
                for key in ("load", "mean_stretch", "suspensions", "migrations", "took_s")
            ]
            lines.append(line([name, found[0]["policy"], str(len(found)), *figures]))
    return lines


def order(rows: Rows, case: str, name: str) -> str:
    """Return the queues by the median of their mean waits, shortest first."""
    found = {queue: values(of(rows, case, name), queue, "wait") for queue in NAMES}
    medians = {queue: statistics.median(each) for queue, each in found.items() if each}
    return " < ".join(f"{queue} {number(medians[queue])}" for queue in sorted(medians, key=lambda each: medians[each]))


def change(rows: Rows, case: str, after: str, before: str, group: str, measure: str) -> str:
    """Return the medians of the change of a mean by a way, seed by seed, in minutes and as a ratio."""
    with_it, without = of(rows, case, after), of(rows, case, before)
    pairs = [
        (with_it[seed]["groups"][group][measure], without[seed]["groups"][group][measure])
        for seed in with_it
        if seed in without and group in with_it[seed]["groups"]
    ]
    if not pairs:
        return "none"
    differences = [new - old for new, old in pairs]
    if not any(differences):
        return "the same in all seeds"
    low, high = interval(differences)
    middle = statistics.median(differences)
    sign = "less" if high < 0 else "more" if low > 0 else "open"
    ratios = [new / old for new, old in pairs if old > 0.0]  # the ratio is undefined without waits
    ratio = f", x {statistics.median(ratios):.2f}" if len(ratios) > len(pairs) / 2 else ""
    return f"{sign}: {middle:+.3g} ({low:+.3g} to {high:+.3g}){ratio}"


GAINS = (
    ("lending", "XGE", "XGE/LEND=no"), ("-xge", "XGE, -xge", "XGE"), ("-xge, all", "XGE, -xge, all", "XGE"),
    ("-xge, none", "XGE, -xge, none", "XGE"), ("XGE against EASY", "XGE", "EASY, limits"),
)  # fmt: skip
RATIOS = (("serial_low", "serial"), ("serial_long", "serial"), ("parallel", "serial"), ("parallel_long", "parallel"))


def ratios(rows: Rows) -> list[str]:
    """Return the table of the ratios of mean waits of queues, with those of the paper."""
    ways = [name for name in WAYS if of(rows, "", name)]
    lines = [line(["ratio of mean waits", "paper", *ways]), line(["---"] * (len(ways) + 2))]
    for above, below in RATIOS:
        found = []
        for name in ways:
            groups = [row["groups"] for row in of(rows, "", name).values()]
            found.append(cell([
                each[above]["wait"] / each[below]["wait"]
                for each in groups if above in each and below in each and each[below]["wait"] > 0.0
            ]))  # fmt: skip
        lines.append(line([f"{above} to {below}", number(PAPER[above][0] / PAPER[below][0]), *found]))
    return lines


def gains(rows: Rows) -> list[str]:
    """Return the table of the effects of lending and of `-xge`, by group."""
    lines = [line(["what", "jobs of", "mean wait, minutes", "mean delay, minutes"]), line(["---"] * 4)]
    for what, after, before in GAINS:
        for group in (*NAMES, SHORT):
            cells = [change(rows, "", after, before, group, measure) for measure in ("wait", "delay")]
            lines.append(line([what, group, *cells]))
    return lines


def sensitivity(rows: Rows) -> list[str]:
    """Return for each case the order of waits, and the effects of lending and of `-xge`."""
    lines = [line(["case", "seeds", "load", "order of mean waits under XGE, minutes", "lending: delay of serial",
                   "lending: delay of serial_low", f"-xge: wait of {SHORT}", "-xge: delay of serial",
                   "-xge: wait of parallel"]), line(["---"] * 9)]  # fmt: skip
    for case in CASES:
        found = of(rows, case, "XGE")
        if not found:
            continue
        lines.append(line([
            case or "as it is", str(len(found)), cell([row["load"] for row in found.values()]),
            order(rows, case, "XGE"),
            change(rows, case, "XGE", "XGE/LEND=no", "serial", "delay"),
            change(rows, case, "XGE", "XGE/LEND=no", "serial_low", "delay"),
            change(rows, case, "XGE, -xge", "XGE", SHORT, "wait"),
            change(rows, case, "XGE, -xge", "XGE", "serial", "delay"),
            change(rows, case, "XGE, -xge", "XGE", "parallel", "wait"),
        ]))  # fmt: skip
    return lines


def tables(rows: Rows) -> str:
    """Return all tables, for each overhead model and span of weeks."""
    out = []
    for overheads, span in sorted({(row["overheads"], tuple(row["span"])) for row in rows}):
        mine = [row for row in rows if (row["overheads"], tuple(row["span"])) == (overheads, span)]
        out += [f"\n## Overheads {overheads}; {span[0]} weeks before, {span[1]} measured, {span[2]} after\n"]
        out += ["Over all jobs; medians over seeds with 95 % intervals\n", *whole(mine)]
        out += ["\nMean wait, minutes: Tables II and IV\n", *waits(mine, "wait", GROUPS, paper=0)]
        out += ["\nMaximum wait, minutes: Tables II and IV\n", *waits(mine, "most", GROUPS, paper=1)]
        out += ["\nRatios\n", *ratios(mine)]
        out += ["\nMean delay, minutes\n", *waits(mine, "delay", (*NAMES, SHORT), paper=None)]
        out += ["\nMean bounded stretch\n", *waits(mine, "stretch", (*NAMES, SHORT), paper=None)]
        paper = " < ".join(
            f"{each} {number(PAPER[each][0])}" for each in sorted(NAMES, key=lambda each: PAPER[each][0])
        )
        out += ["\nQueues by mean wait, minutes\n", f"* paper: {paper}"]
        out += [f"* {name}: {order(mine, '', name)}" for name in WAYS if of(mine, "", name)]
        out += ["\nWhat changes, seed by seed\n", *gains(mine)]
        out += ["\nSensitivity\n", *sensitivity(mine)]
    return "\n".join(out)


# --- the command


def run(chosen: argparse.Namespace) -> None:
    """Simulate the cases that are missing in the file."""
    print_machine()
    overheads = parse_overheads(chosen.overheads)
    span = Span(chosen.before, chosen.weeks, chosen.after)
    there = {
        (row["overheads"], tuple(row["span"]), row["seed"], row["case"], row["way"]) for row in read_rows(chosen.json)
    }
    for seed in range(chosen.first, chosen.first + chosen.seeds):
        pairs = [("", name) for name in chosen.ways]
        if chosen.sensitivity:
            pairs = [(case, name) for case in CASES for name in ORDERED]
        draw = random.Random(seed)  # noqa: S311  # a random order, not a secret
        cases = sorted({case for case, _ in pairs})
        draw.shuffle(cases)
        for case in cases:
            mine = [name for other, name in pairs if other == case]
            mine = [name for name in mine if (overheads.name, tuple(span), seed, case, name) not in there]
            draw.shuffle(mine)
            jobs = jobs_of(seed, case, span) if mine else []
            for name in mine:
                row = {"overheads": overheads.name, "span": list(span), "seed": seed, "case": case, "way": name}
                row |= measured(jobs, case, name, span, overheads)
                add_rows(chosen.json, [row])
                serial = row["groups"]["serial"]["wait"]
                print(
                    f"seed {seed}, {case or 'as it is'}, {name}: {row['took_s']:.1f} CPU s, {row['decisions']} "
                    f"decisions, load {row['load']:.2f}, mean wait of serial jobs {number(serial)} min",
                    flush=True,
                )


def main() -> None:
    """Run the missing cases, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=0, help="number of seeds")
    parser.add_argument("--before", type=int, default=2, help="weeks before the measured ones")
    parser.add_argument("--weeks", type=int, default=4, help="measured weeks")
    parser.add_argument("--after", type=int, default=1, help="weeks after them in which jobs are still submitted")
    parser.add_argument("--ways", default=";".join(WAYS), help="the ways, separated by semicolons")
    parser.add_argument("--sensitivity", action="store_true", help="vary the load and the partition, under XGE")
    parser.add_argument(
        "--overheads", default="constant:300", help="the overhead model, as of `testbed simulate --overheads`"
    )
    parser.add_argument("--json", type=Path, default=Path("xge.jsonl"), help="file for the raw figures, appended to")
    parser.add_argument("--table", type=Path, help="only print the tables of this file")
    chosen = parser.parse_args()
    if chosen.table is None:
        chosen.ways = chosen.ways.split(";")
        if unknown := set(chosen.ways) - set(WAYS):
            parser.error(f"--ways: {', '.join(sorted(unknown))}: expected of {'; '.join(WAYS)}")
        if chosen.before < 0 or chosen.weeks < 1 or chosen.after < 0:
            parser.error("--before, --weeks, --after: expected at least 0, 1, and 0")
        check_disk()
        run(chosen)
    print(tables(read_rows(chosen.table or chosen.json)))


if __name__ == "__main__":
    main()
