"""The output of a comparison on the terminal: sentences and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, fields
from functools import partial

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from testbed.study.compare.accounting import PARTS, Parts, mean_absolute
from testbed.study.compare.equivalence import EQUAL, NOT_SHOWN
from testbed.study.compare.sentences import (
    core_speed,
    decisions,
    judgement,
    largest_source,
    order_words,
    percent,
    repeats,
    verdict,
)
from testbed.study.compare.study import Group, Study

_STYLES = {EQUAL: "bold green", NOT_SHOWN: "bold yellow"}
_BAD = "bold red"


def print_study(found: Study, console: Console, *, most_jobs: int) -> None:
    """Print the results of a comparison, with at most `most_jobs` rows per table of jobs."""
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    say(f"Simulated with {found.overheads}")
    for run in found.again:
        say(f"{run.facts.name}: a copy of an earlier run, counts once", style="yellow")
    for run in found.runs:
        health = found.health[str(run.facts.path)]
        word = "quarantined" if run in found.left_out else "disturbed, kept"
        for reason in health.reasons:
            say(f"{run.facts.name}: {word}: {reason}", style="bold yellow")
        for finding in health.findings:
            if finding.value is None:
                say(f"{run.facts.name}: {finding}", style="dim")
    for group in found.groups:
        _print_group(group, console, most_jobs)
    for orders in found.orders.values():
        say("\nOrder of policies", style="bold")
        for each in orders:
            say(order_words(each), style="" if each.same is not False else _BAD)
    say("")
    say(verdict(found), style=_STYLES.get(found.verdict, _BAD) if found.groups else _BAD)


def _print_group(group: Group, console: Console, most_jobs: int) -> None:
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    say(f"\n{group.policy}  (conditions {group.conditions})", style="bold")
    say(repeats(group))
    say(core_speed(group))
    if (noise := group.spread) is not None:
        low, high = noise.interval
        say(
            f"noise: turnarounds of repeats differ by {percent(noise.median)} in the median over jobs (95 % over "
            f"jobs: {percent(low)} to {percent(high)}), at most by {percent(noise.largest)} (job "
            f"{group.pairs[0].jobs[noise.worst_job].job}), over {noise.pairs} pairs of runs"
        )
    for judged in group.judged:
        say(judgement(judged), style=_STYLES.get(judged.verdict, _BAD))
    console.print(jobs_table(group, most_jobs))
    console.print(sources_table(group, most_jobs))
    say(largest_source(group))
    for pair in group.pairs:
        say(f"decisions of {pair.run.facts.name}:")
        for line in decisions(pair):
            say(f"  {line}")


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def jobs_table(group: Group, most: int) -> Table:
    """Return a table with one row per job, the largest errors first: means over runs, live beside simulated."""
    table = _table(
        "Jobs (live and simulated; means over runs; times in trace seconds)",
        ("job", "tasks", "run", "start", "sim", "turnaround", "sim", "error", "stretch", "sim", "pre", "sim",
         "mig", "sim"),
    )  # fmt: skip
    shown = list(group.sources)[:most]
    rows = {job.job: row for row, job in enumerate(group.pairs[0].jobs)}
    for job in shown:
        both = [pair.jobs[rows[job]] for pair in group.pairs]
        cells = [str(job), str(both[0].tasks), f"{both[0].run_time_s:,.0f}"]
        for name, digits in (("start_s", 1), ("turnaround_s", 1)):
            cells += [_mean([getattr(side, name) for side in sides], digits) for sides in _sides(both)]
        cells.append(f"{sum(each.error_frac for each in both) / len(both):+.1%}")
        for name, digits in (("stretch", 2), ("preemptions", 1), ("migrations", 1)):
            cells += [_mean([getattr(side, name) for side in sides], digits) for sides in _sides(both)]
        table.add_row(*map(escape, cells))
    _more(table, len(rows) - len(shown))
    return table


def sources_table(group: Group, most: int) -> Table:
    """Return a table of the parts of each turnaround difference, live minus simulated, in trace seconds."""
    names = [name.removesuffix("_s") for name in PARTS]
    table = _table("Where the error comes from (live minus simulated, trace seconds)", ("job", "turnaround", *names))
    shown = list(group.sources.items())[:most]
    for job, (live, simulated) in shown:
        apart = live - simulated
        table.add_row(str(job), f"{apart.turnaround_s:+,.1f}", *(f"{value:+,.1f}" for value in astuple(apart)))
    _more(table, len(group.sources) - len(shown))
    gaps = {job: live - simulated for job, (live, simulated) in group.sources.items()}
    sizes = mean_absolute(gaps)
    total = sum(abs(gap.turnaround_s) for gap in gaps.values()) / len(gaps)
    table.add_section()
    table.add_row("mean absolute", f"{total:,.1f}", *(f"{getattr(sizes, each.name):,.1f}" for each in fields(Parts)))
    return table


def _sides(both: Sequence[object]) -> tuple[list[object], list[object]]:
    return [each.live for each in both], [each.simulated for each in both]  # type: ignore[attr-defined]  # JobPair


def _mean(values: Sequence[float], digits: int) -> str:
    value = sum(values) / len(values)
    return f"{value:,.0f}" if value == int(value) and digits == 1 else f"{value:,.{digits}f}"


def _more(table: Table, hidden: int) -> None:
    if hidden > 0:
        table.add_row(f"{hidden} more")
