"""A run directory as one object: data frames, tables, figures, and the state from its journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from testbed.errors import TestbedError, UserError, nearest
from testbed.run.history import History
from testbed.run.parts import has_journal
from testbed.study.analysis.extras import missing, need
from testbed.study.report.page.fragment import headlines_html, image_html, text_html
from testbed.study.report.page.slot_tables import slots_table
from testbed.study.report.page.table import Table, table_html
from testbed.study.report.page.tables import (
    headlines,
    jobs_table,
    latency_table,
    metrics_table,
    nodes_table,
    penalties_table,
)
from testbed.study.report.run.facts import RunFacts, verdict
from testbed.study.report.run.run_data import RunData, read_record, with_points
from testbed.study.report.run.slots import slots_of

if TYPE_CHECKING:
    import polars as pl

    from testbed.control.order_messages import Answer, OrderName
    from testbed.study.report.page.document import Page
    from testbed.study.report.page.style import Chart

Status: TypeAlias = Literal["preparing", "running", "finished", "aborted"]

_SCHEDULE_FIGURE: Final = "gantt"


class Run:
    """A run directory, of a run that is going on, has ended or was killed, from this or an earlier version.

    Files are read on first use and cached; `refresh` clears the cache. Data frames need the extra `query`, figures the
    extra `report`; all other members need neither. Raises `UserError` for a folder that is no run directory. Reading a
    broken file raises `UserError` with the file and line.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise UserError(f"{self.path}: no such run directory")
        if not has_journal(self.path):
            raise UserError(
                f"{self.path}: no run directory: expected one with events.jsonl, as `testbed run` writes it"
            )
        self._points: dict[str, pl.DataFrame] = {}

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def refresh(self) -> Run:
        """Clear the cache, so that the files of a run that is going on are read again; return this object."""
        for name in ("_record", "_material", "_page", "jobs", "journal"):
            self.__dict__.pop(name, None)
        self._points.clear()
        return self

    # --- what happened -------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Name of the directory."""
        return self._facts.name

    @property
    def policy(self) -> str:
        """Name of the scheduling policy."""
        return self._facts.policy

    @property
    def history(self) -> History:
        """State of jobs, guests, images and nodes after the last entry of the journal: the fold of its events."""
        return self._facts.history

    @property
    def status(self) -> Status:
        """Status by the journal; after a killed controller it stays `preparing` or `running`."""
        history = self.history
        if history.ended:
            return "aborted" if history.aborted else "finished"
        return "preparing" if history.replay is None else "running"

    @property
    def verdict(self) -> str:
        """One sentence on how the run ended, or on its progress so far."""
        facts = self._facts
        if facts.summary is None and not self.history.ended:
            known = f"{facts.done} of the {len(facts.jobs)} jobs that its journal knows are done"
            return f"Not ended: it goes on, or its controller was killed; {known}."
        return verdict(facts)[0]

    @property
    def summary(self) -> dict[str, Any]:
        """Content of summary.json; before that file exists, data of the journal without metrics."""
        return self._facts.summary_so_far()

    @property
    def metrics(self) -> dict[str, float | None]:
        """Values of the metrics by name, None for a metric without measurements; their units are in `summary`."""
        return {name: metric.get("value") for name, metric in self._facts.metrics.items()}

    @property
    def manifest(self) -> Mapping[str, Any]:
        """Content of manifest.json: versions, clocks and facts of the nodes; empty before the replay began."""
        return self._facts.manifest

    @property
    def scenario(self) -> dict[str, Any]:
        """The scenario as it was run; empty before the replay began."""
        scenario = self._facts.manifest.get("scenario")
        return dict(scenario) if isinstance(scenario, dict) else {}

    def order(self, order: OrderName, node: str | None = None, *, wait_s: float = 600.0) -> Answer:
        """Send an order to a run that is going on, as `testbed control` and `testbed node drain` do; return the answer.

        Raises `RunError` with the reason if the run accepts no orders.
        """
        from testbed.control.order_client import give  # noqa: PLC0415  # only orders need the controller's modules
        from testbed.control.order_messages import Request  # noqa: PLC0415  # as above

        return give(self.path, Request(order, node=node, wait_s=wait_s))

    # --- data frames ---------------------------------------------------------------------------------------

    @cached_property
    def jobs(self) -> pl.DataFrame:
        """One row per job: columns of jobs.csv, and its `state`; before the run ends, values that the journal has."""
        need("query", "data frames")
        import polars as pl  # noqa: PLC0415  # an extra, and slow to import

        from testbed.measure.lines_reader import table_dtypes  # noqa: PLC0415  # needs polars

        types = {name: kind for name, kind in table_dtypes("jobs").items() if name != "run"}
        return pl.DataFrame([asdict(job) for job in self._facts.jobs], schema={**types, "state": pl.String()})

    @property
    def reschedulings(self) -> pl.DataFrame:
        """One row per complete preemption or migration: its tasks and MiB, and its penalty by phases."""
        return self.points("rescheduling")

    @property
    def caps(self) -> pl.DataFrame:
        """One row per window in which a CPU cap was compared with the CPU use of its guest."""
        return self.points("cap")

    @property
    def noise(self) -> pl.DataFrame:
        """One row per node and second of the replay: core speed, and the cores that other load on the machine used."""
        need("query", "data frames")
        from testbed.study.compare.live import read_live  # noqa: PLC0415  # needs polars
        from testbed.study.compare.noise import MEASUREMENTS, noise_frame  # noqa: PLC0415  # needs polars

        return noise_frame(read_live(self.path), {name: self.points(name) for name in MEASUREMENTS})

    @cached_property
    def journal(self) -> pl.DataFrame:
        """One row per entry of the journal; `testbed.run.journal.read_events` yields them as typed events."""
        need("query", "data frames")
        from testbed.measure.frames import load_journal  # noqa: PLC0415  # needs polars

        return load_journal(self.path)

    def points(self, measurement: str) -> pl.DataFrame:
        """Return one row per point of a measurement, with the columns that `testbed schema` lists."""
        need("query", "data frames")
        from testbed.measure.frames import load_points  # noqa: PLC0415  # needs polars

        if measurement not in self._points:
            self._points.update(load_points(self.path, [measurement]))
        return self._points[measurement]

    def query(self, sql: str) -> pl.DataFrame:
        """Return the result of a query in SQL, as `testbed query` does; `testbed query --tables` lists the tables."""
        need("query", "data frames")
        from testbed.measure.sql import execute, load_tables, named_tables  # noqa: PLC0415  # needs polars

        return execute(sql, load_tables([self.path], named_tables(sql)))

    # --- the report ----------------------------------------------------------------------------------------

    @property
    def tables(self) -> dict[str, Table]:
        """Tables of the report by name, with cells as text; the table of latencies needs the extra `query`."""
        facts = self._facts
        found = [penalties_table(facts), jobs_table(facts), metrics_table([facts], ["value"]), nodes_table(facts)]
        slots = slots_of(self._record.schedule)
        found.append(slots_table([] if slots is None else [slots]))
        if not missing("query"):
            from testbed.study.report.run.quantiles import latencies  # noqa: PLC0415  # needs polars

            found.append(latency_table(latencies(self._material.points)))
        return {table.name: table for table in found if table is not None}

    @property
    def figures(self) -> dict[str, Chart]:
        """Figures of the report by name; figures for which the run has no data are missing (see `figure`)."""
        return {chart.name: chart for chart in self._page.charts}

    def figure(self, name: str) -> Chart:
        """Return one figure of the report; raises `UserError` with the reason if the run has no data for it."""
        from testbed.study.report.page.style import Chart  # noqa: PLC0415  # needs matplotlib

        found = {one.name: one for section in self._page.sections for one in section.figures}
        if name not in found:
            known = nearest(name, found, 1) or f"; figures: {', '.join(found)}"
            raise UserError(f"no figure {name!r}{known}")
        chart = found[name]
        if not isinstance(chart, Chart):
            raise UserError(f"{self.path}: no figure {name!r}: {chart.reason}")
        return chart

    def write_report(self, path: str | Path | None = None) -> Path:
        """Write the report page as `testbed report` does, by default to RUN/report.html; return its path."""
        target = self.path / "report.html" if path is None else Path(path)
        page = self._page
        from testbed.study.report.page.document import write_page  # noqa: PLC0415  # needs matplotlib

        write_page(page, target)
        return target

    def _repr_html_(self) -> str:
        """Return a summary for a notebook: verdict, numbers, the schedule and the jobs."""
        try:
            return self._html()
        except TestbedError as error:
            return f"<p>{text_html(str(error), 1000)}</p>"

    def _html(self) -> str:
        facts = self._facts
        title = f"{facts.scenario} · {facts.policy}"
        parts = [
            f"<h3>{text_html(title)}</h3><p>{text_html(str(self.path), 1000)}<br>{text_html(self.verdict, 1000)}</p>",
            headlines_html(headlines(facts)),
        ]
        if not missing("report"):
            chart = self.figures.get(_SCHEDULE_FIGURE)
            parts += [image_html(chart.rendered("svg"), chart.alt)] if chart is not None else []
        parts.append(table_html(jobs_table(facts)))
        return f"<div>{''.join(parts)}</div>"

    @cached_property
    def _record(self) -> RunData:
        return read_record(self.path)

    @property
    def _facts(self) -> RunFacts:
        return self._record.facts

    @cached_property
    def _material(self) -> RunData:
        return with_points(self._record)

    @cached_property
    def _page(self) -> Page:
        need("report", "figures")
        from testbed.study.report.page.document import run_page  # noqa: PLC0415  # needs matplotlib

        return run_page(self._material)
