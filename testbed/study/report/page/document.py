"""The report page of one run or of several: figures and tables in one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from testbed import __version__
from testbed.errors import UserError
from testbed.host.whole_files import write_whole
from testbed.run import events
from testbed.study.report.page.share_tables import exchange_table
from testbed.study.report.page.slot_tables import slots_table
from testbed.study.report.page.style import HALF_IN, NARROW_IN, WIDE_IN, Absent, Chart, Headline, inline_svg
from testbed.study.report.page.table import Table
from testbed.study.report.page.tables import (
    bands_table,
    groups_table,
    headlines,
    jobs_table,
    latency_table,
    metrics_table,
    nodes_table,
    penalties_table,
    provenance,
    scenario_text,
    verdicts_table,
)
from testbed.study.report.run.comparison import Group, groups_of, same_runs, verdicts
from testbed.study.report.run.facts import Remark, verdict
from testbed.study.report.run.figures_barrier import figure_supersteps
from testbed.study.report.run.figures_caps import figures_caps
from testbed.study.report.run.figures_flows import figures_flows
from testbed.study.report.run.figures_penalty import figure_penalty
from testbed.study.report.run.figures_schedule import figures_schedule, figures_schedules
from testbed.study.report.run.figures_shares import figures_shares
from testbed.study.report.run.figures_slots import figures_slots
from testbed.study.report.run.figures_stretch import figure_stretch, run_labels
from testbed.study.report.run.figures_traffic import figure_traffic
from testbed.study.report.run.figures_utilisation import figure_utilisation
from testbed.study.report.run.quantiles import latencies
from testbed.study.report.run.response_times import figure_responses, response_table, response_times
from testbed.study.report.run.run_data import RunData
from testbed.study.report.run.schedule import Schedule
from testbed.study.report.run.slots import Slots, slots_of
from testbed.study.report.terminal.order_words import text_of_order
from testbed.study.report.terminal.text import METRICS

_MOST_REMARKS = 20
_NOT_COMPARED = ("bound", "cap_windows")  # these depend on the workload, or on the duration of the measurement


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a page: figures, then tables, then facts, then collapsible texts."""

    name: str
    title: str
    figures: tuple[Chart | Absent, ...] = ()
    tables: tuple[Table, ...] = ()
    facts: tuple[list[tuple[str, str]], ...] = ()
    details: tuple[tuple[str, str], ...] = ()
    lead: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """The content of a page; `well` is whether the verdict is good."""

    title: str
    kicker: str
    heading: str
    policy: str
    verdict: str
    well: bool
    lead: str
    source: str
    sections: tuple[Section, ...]
    headlines: tuple[Headline, ...] = ()
    remarks: tuple[str, ...] = ()
    version: str = field(default=__version__)

    @property
    def charts(self) -> list[Chart]:
        """All figures of the page, without absent ones."""
        return [one for section in self.sections for one in section.figures if isinstance(one, Chart)]


def _remark(remark: Remark) -> Iterator[str]:
    at = f"{remark.t_s:.1f} s"
    match remark:
        case events.Aborted():
            yield f"At {at} the run was aborted: {remark.reason}"
        case events.Retry():
            yield f"At {at} an operation on job {remark.job} was tried again: {remark.error}"
        case events.RecorderFailed():
            yield f"At {at} recorder {remark.name} failed and was left out: {remark.error}"
        case events.Order() | events.ClockStarted() | events.Resumed() | events.Recovered():
            yield f"At {at} {text_of_order(remark)}."
        case events.Doubt():
            yield f"At {at} job {remark.job}, task {remark.task}: {remark.reason}"
        case events.Results():
            for reason, jobs in remark.unchecked.items():
                yield f"Results that the controller did not compare, of {len(jobs)} jobs: {reason}"
        case events.Node(online=False):
            yield f"At {at} node {remark.node} went offline: {remark.reason}"


def _remarks(material: RunData) -> tuple[str, ...]:
    """Return remarks for the top of the page: failures, lost nodes, retries."""
    run = material.facts
    found = [f"Job {job} failed ({reason.code}): {reason.text}" for job, reason in run.failed.items()]
    found += [text for remark in run.remarks for text in _remark(remark)]
    found += material.trouble
    if run.summary is None:
        found.append("Without summary.json there are no metrics; all figures and tables are from journal and points.")
    hidden = len(found) - _MOST_REMARKS
    return tuple(found if hidden <= 0 else [*found[:_MOST_REMARKS], f"… and {hidden} more in events.jsonl"])


def run_page(material: RunData, others: Sequence[Schedule] = ()) -> Page:
    """Return the page of one run; `others` are schedules of the same jobs for comparison."""
    run, points = material.facts, material.points
    words, well = verdict(run)
    scenario = scenario_text(run)
    tables = [table for table in (penalties_table(run), jobs_table(run), metrics_table([run], ["value"])) if table]
    latency, nodes = latency_table(latencies(points)), nodes_table(run)
    slots = _slots([material.schedule, *others])
    description = (run.manifest.get("scenario") or {}).get("description")
    return Page(
        title=f"{run.scenario} · {run.policy}",
        kicker=f"Run {run.name}",
        heading=run.scenario,
        policy=run.policy,
        verdict=words,
        well=well,
        lead=str(description or ""),
        source=f"the run directory {run.name}",
        headlines=tuple(headlines(run)) if run.summary is not None else (),
        remarks=_remarks(material),
        sections=(
            Section(
                "schedule", "Schedule and utilisation",
                (
                    *figures_schedule(material.schedule, others), *figures_slots(slots),
                    figure_utilisation(run, material.schedule),
                ),
                tuple(table for table in (slots_table(slots),) if table),
            ),
            Section(
                "costs", "Stretch and penalties",
                (figure_stretch([run]), figure_penalty(run), figure_traffic(run, points.get("action"))),
            ),
            Section(
                "accuracy", "Accuracy, noise and latency",
                (
                    *figures_caps(run, points.get("cap")),
                    *figures_shares(points.get("guest")),
                    *figures_flows([material.schedule, *others]),
                    figure_supersteps(points.get("superstep")),
                ),
                tuple(table for table in (latency, exchange_table(points.get("node"))) if table),
            ),
            Section("tables", "Tables", tables=tuple(tables)),
            Section(
                "provenance", "Provenance", facts=(provenance(run),), tables=(nodes,) if nodes else (),
                details=(("Scenario of this run (JSON)", scenario),) if scenario else (),
            ),
        ),
    )  # fmt: skip


def comparison_page(materials: Sequence[RunData]) -> Page:
    """Return the page of several runs: metrics side by side, and noise bands where runs were repeated."""
    runs = [material.facts for material in materials]
    labels = run_labels(runs)
    groups = groups_of(runs)
    metrics = [name for name, _ in METRICS if name not in _NOT_COMPARED]
    bands, against = bands_table(groups, metrics), verdicts_table(verdicts(groups, metrics))
    workloads = {group.workload for group in groups}
    twice = [
        f"{run.name} is a copy of another run on this page (tag {run.tag}), and does not count as a repeat."
        for run in same_runs(runs)
    ]
    trouble = [words for material in materials for words in material.trouble]
    ill = [f"{label}: {words}" for label, (words, well) in zip(labels, map(verdict, runs), strict=True) if not well]
    schedules = [replace(material.schedule, name=label) for material, label in zip(materials, labels, strict=True)]
    slots = _slots(schedules)
    noise_lead = (
        "No run has a repeat of the same scenario, policy and seed: there is no noise band, and no difference can be "
        "distinguished from noise." if bands is None else ""
    )  # fmt: skip
    names = list(dict.fromkeys(run.scenario for run in runs))
    return Page(
        title=f"{len(runs)} runs of {', '.join(names)}",
        kicker="Comparison",
        heading=f"{len(runs)} runs of {', '.join(names)}",
        policy="",
        verdict=(
            f"{len(ill)} of {len(runs)} runs are incomplete or have failed jobs." if ill
            else "All runs are complete, and all jobs are done."
        ),
        well=not ill,
        lead="" if len(workloads) == 1 else (
            f"These runs are of {len(workloads)} different workloads (scenario without policy, and seed); only runs of "
            "the same workload are compared."
        ),
        source="the run directories " + ", ".join(run.name for run in runs),
        remarks=tuple([*twice, *ill, *trouble][:_MOST_REMARKS]),
        sections=(
            Section("metrics-section", "Metrics", tables=(groups_table(groups), metrics_table(runs, labels))),
            Section("noise", "Noise band", tables=tuple(one for one in (against, bands) if one), lead=noise_lead),
            *_responses(groups),
            Section("stretches", "Stretch", (figure_stretch(runs),)),
            Section(
                "schedule", "Schedules", (*figures_schedules(schedules), *figures_slots(slots)),
                tuple(table for table in (slots_table(slots),) if table),
            ),
            Section("provenance", "Provenance", facts=tuple(provenance(run) for run in runs)),
        ),
    )  # fmt: skip


def _slots(schedules: Sequence[Schedule]) -> list[Slots]:
    """Return the slots of those schedules whose policy is XGE."""
    return [slots for slots in map(slots_of, schedules) if slots is not None]


def _responses(groups: Sequence[Group]) -> tuple[Section, ...]:
    """Return the section of response times if jobs compete by shares, else an empty tuple."""
    found = response_times(groups)
    figure, table = figure_responses(found), response_table(found)
    if figure is None or table is None:
        return ()
    return (Section("responses-section", "Response times", (figure,), (table,)),)


def _draw(one: Chart) -> Markup:
    """Return the SVG drawings of a chart for wide and for narrow screens; matplotlib escapes their text."""
    if not one.wide:
        return Markup(inline_svg(one, HALF_IN, "half"))  # noqa: S704  # matplotlib escapes what it writes into SVG
    return Markup(inline_svg(one, WIDE_IN, "wide") + inline_svg(one, NARROW_IN, "narrow"))  # noqa: S704  # as above


def render(page: Page) -> str:
    """Return the page as HTML with all texts escaped."""
    loader = PackageLoader("testbed.study.report.page")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    css = Markup(loader.get_source(environment, "page.css")[0])  # noqa: S704  # our own file
    return environment.get_template("page.html.jinja").render(page=page, css=css, draw=_draw)


def write_page(page: Page, path: Path) -> None:
    """Write the page to `path` atomically. Raises `UserError`."""
    text = render(page)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        raise UserError(
            f"{path}: cannot write the page: {error.strerror}; choose another place with --out FILE"
        ) from error
