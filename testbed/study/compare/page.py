"""The HTML page of a comparison: the same sentences and numbers as on the terminal, with figures."""

# ruff: noqa: RUF001 - signs of mathematics and dashes, for people to read

from __future__ import annotations

from dataclasses import astuple, replace
from math import isfinite

from testbed.study.compare.accounting import PARTS
from testbed.study.compare.equivalence import EQUAL
from testbed.study.compare.figures import bands, dumbbells, noise, scatter, sources
from testbed.study.compare.sentences import (
    core_speed,
    decisions,
    judgement,
    largest_source,
    order_words,
    repeats,
    sentence,
    verdict,
)
from testbed.study.compare.study import Group, Study
from testbed.study.report.page.document import Page, Section
from testbed.study.report.page.style import Absent, Chart, Headline
from testbed.study.report.page.table import Table
from testbed.study.report.run.figures_schedule import figures_schedule


def study_page(found: Study) -> Page:
    """Return the page of a comparison."""
    names = [run.facts.name for run in found.runs]
    sections = [_health_section(found)]
    for number, group in enumerate(found.groups, 1):
        sections += _group_sections(group, number, alone=len(found.groups) == 1)
    if found.orders:
        sections.insert(0, _order_section(found))
    scenarios = ", ".join(dict.fromkeys(run.facts.scenario for run in found.runs))
    remarks = [
        f"{run.facts.name} was quarantined: {reason}"
        for run in found.left_out
        for reason in found.health[str(run.facts.path)].reasons
    ]
    remarks += [f"{run.facts.name} is a copy of an earlier run, and counts once." for run in found.again]
    first = found.groups[0] if found.groups else None
    return Page(
        title=f"{scenarios}: live and simulated",
        kicker="Live against simulated",
        heading=scenarios,
        policy=first.policy if first is not None and len(found.groups) == 1 else "",
        verdict=verdict(found),
        well=found.verdict == EQUAL,
        lead=f"Simulated with {found.overheads}.",
        source="the run directories " + ", ".join(names),
        headlines=() if first is None else tuple(_headlines(first)),
        remarks=tuple(remarks),
        sections=tuple(sections),
    )


def _headlines(group: Group) -> list[Headline]:
    found = []
    for judged in group.judged:
        name = "median turnaround error" if judged.name == "turnaround" else "max-stretch error"
        found.append(Headline(f"{judged.mean * 100:.1f}", "%", f"{name}, goal {judged.goal:.0%}: {judged.verdict}"))
    same = sum(pair.alignment.same_frac for pair in group.pairs) / len(group.pairs)
    found.append(Headline(f"{same * 100:.0f}", "%", "decisions with the same placement"))
    found.append(Headline(str(len(group.pairs)), "", "live runs"))
    return found


def _health_section(found: Study) -> Section:
    rows = [
        (run.facts.name, finding.what, "–" if finding.value is None else f"{finding.value:.4g}",
         f"{finding.limit:g}" if isfinite(finding.limit) else "–", finding.unit, "not recorded" if finding.value is None
         else "disturbed" if finding.disturbed else "within limit")
        for run in found.runs
        for finding in found.health[str(run.facts.path)].findings
    ]  # fmt: skip
    columns = ("run", "finding", "value", "limit", "unit", "result")
    caption = (
        "The rule uses only the records of each run, before any simulation. A run with one finding beyond its limit is "
        "disturbed."
    )
    return Section("quarantine", "Disturbed runs", tables=(
        Table("quarantine-table", "Findings of the quarantine rule per run", caption, columns, tuple(rows), texts=2),
    ))  # fmt: skip


def _group_sections(group: Group, number: int, *, alone: bool) -> list[Section]:
    """Return the sections of a group: errors, sources, decisions and the two schedules of its first run."""
    said = (repeats(group), core_speed(group), *map(judgement, group.judged))
    lead = " ".join(f"{sentence(each)}." for each in said)
    of = "" if alone else f", {group.policy}"
    first = group.pairs[0]
    charts = figures_schedule(replace(first.run.schedule, name=first.run.facts.name), [first.simulation.schedule])
    unique: list[Chart | Absent] = [replace(chart, name=f"{chart.name}-of-{number}") for chart in charts]
    both = [(pair.run.facts.name, decisions(pair)) for pair in group.pairs]
    words = tuple((f"Decisions of {name}", "\n".join(lines)) for name, lines in both)
    return [
        Section(
            f"errors-{number}", f"Errors{of}",
            (bands(group, number), scatter(group, number), dumbbells(group, number), noise(group, number)),
            (_jobs_table(group, number),), lead=lead,
        ),
        Section(
            f"sources-section-{number}", f"Sources of error{of}", (sources(group, number),),
            (_sources_table(group, number),), lead=sentence(largest_source(group)) + ".",
        ),
        Section(
            f"decisions-{number}", f"Decisions{of}", tuple(unique), details=words,
            lead=" ".join(f"{name}: {lines[0]}; {lines[1]}." for name, lines in both),
        ),
    ]  # fmt: skip


def _jobs_table(group: Group, number: int) -> Table:
    rows = []
    for pair in group.pairs:
        for job in pair.jobs:
            one, other = job.live, job.simulated
            rows.append((
                pair.run.facts.name, str(job.job), str(job.tasks), f"{job.run_time_s:,.0f}",
                f"{one.start_s:,.1f}", f"{other.start_s:,.1f}", f"{one.turnaround_s:,.1f}",
                f"{other.turnaround_s:,.1f}", f"{job.error_frac:+.1%}", f"{one.stretch:.2f}", f"{other.stretch:.2f}",
                f"{one.preemptions} / {other.preemptions}", f"{one.migrations} / {other.migrations}",
            ))  # fmt: skip
    columns = ("run", "job", "tasks", "run time", "start live", "simulated", "turnaround live", "simulated", "error",
               "stretch live", "simulated", "preemptions", "migrations")  # fmt: skip
    caption = (
        "Times in trace seconds; preemptions and migrations as live / simulated counts; "
        f"n = {len(rows)} jobs of {len(group.pairs)} runs."
    )
    return Table(f"jobs-{number}", "All jobs, live and simulated", caption, columns, tuple(rows))


def _sources_table(group: Group, number: int) -> Table:
    rows = []
    for job, (live, simulated) in group.sources.items():
        apart = live - simulated
        rows.append((str(job), f"{apart.turnaround_s:+,.1f}", *(f"{value:+,.1f}" for value in astuple(apart))))
    columns = ("job", "turnaround", *(name.removesuffix("_s") for name in PARTS))
    caption = "Live minus simulated in trace seconds, mean over runs; jobs with the largest difference first."
    return Table(f"sources-table-{number}", "Parts of each turnaround difference", caption, columns, tuple(rows))


def _order_section(found: Study) -> Section:
    tables, leads = [], []
    for number, (conditions, orders) in enumerate(found.orders.items(), 1):
        rows = []
        for order in orders:
            leads.append(f"{sentence(order_words(order))}.")
            for pair in order.pairs:
                noise = f"{pair.noise_frac:.1%}" if pair.noise_frac == pair.noise_frac else "unknown"  # NaN
                rows.append((
                    order.metric, pair.first, pair.second, f"{pair.live_frac:+.1%}", noise,
                    f"{pair.simulated_frac:+.1%}", "yes" if pair.told_apart else "no", "yes" if pair.agrees else "no",
                ))  # fmt: skip
        columns = ("metric", "policy", "against", "live difference", "noise", "simulated", "distinct", "same order")
        caption = (
            f"Conditions {conditions}. Differences of the logarithms of means over runs; noise: 95 % limit of a live "
            "difference, pooled over policies."
        )
        tables.append(Table(f"orders-{number}", "Pairs of policies", caption, columns, tuple(rows), texts=3))
    return Section("order", "Order of policies", tables=tuple(tables), lead=" ".join(leads))
