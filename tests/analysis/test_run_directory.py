"""`Run`: frames, tables, figures and state of run directories: complete, growing, killed, broken, hostile and old."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from support.golden.pinned_check import check_pinned
from support.old_runs.old_run_archive import RUNS, unpack
from support.report.page_reader import Reader
from support.report.rehearsed_run import GrowingRun, rehearse

from testbed import Run, UserError
from testbed.run.history import fold
from testbed.run.journal import read_events
from testbed.study.analysis import extras
from testbed.study.report.page.document import run_page
from testbed.study.report.page.style import Chart
from testbed.study.report.run.run_data import load_run_data

__all__ = ["check_pinned"]
EVIL = "<script>alert('x')</script><img src=//evil.example onerror=alert(1)>\x1b[31m&amp;\u202e"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rehearse(tmp_path_factory.mktemp("runs") / "2026-11-21T10-29-37-quickstart")


@pytest.fixture
def path(source: Path, tmp_path: Path) -> Path:
    return shutil.copytree(source, tmp_path / source.name)


def _change(path: Path, act: Callable[[dict], None]) -> None:
    data = json.loads(path.read_text())
    act(data)
    path.write_text(json.dumps(data))


def test_jobs_are_those_of_the_file(path: Path) -> None:
    with (path / "jobs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    jobs = Run(path).jobs
    assert jobs["job_id"].to_list() == [int(row["job_id"]) for row in rows]
    assert [str(value) for value in jobs["end_time_s"]] == [row["end_time_s"] for row in rows]
    assert set(jobs["state"]) == {"done"}
    assert jobs.schema["tasks"] == pl.Int64


def test_points_are_typed_and_read_once(path: Path) -> None:
    run = Run(path)
    assert run.reschedulings.schema["penalty_s"] == pl.Float64
    assert run.reschedulings.height == run.summary["metrics"]["preemptions"]["value"] + run.metrics["migrations"]
    assert run.points("cap") is run.caps
    with pytest.raises(UserError, match="no measurement 'capp'; nearest: cap"):
        run.points("capp")


def test_journal_and_queries(path: Path) -> None:
    run = Run(path)
    decisions = run.journal.filter(pl.col("kind") == "decision").height
    assert decisions > 0
    assert run.query("SELECT count(*) AS n FROM events WHERE kind = 'decision'")["n"].to_list() == [decisions]


def test_tables_and_figures_are_those_of_the_report(path: Path) -> None:
    run, page = Run(path), run_page(load_run_data(path))
    tables = {table.name: table for section in page.sections for table in section.tables}
    assert run.tables == tables
    charts = {chart.name: chart.caption for chart in page.charts}
    assert {name: chart.caption for name, chart in run.figures.items()} == charts
    assert run.figure("stretch").rendered("png").startswith(b"\x89PNG")
    assert run.figure("stretch")._repr_svg_().startswith("<?xml")


def test_a_figure_that_the_run_cannot_have_says_why(path: Path) -> None:
    run = Run(path)
    absent = [one for section in run._page.sections for one in section.figures if not isinstance(one, Chart)]
    for one in absent:
        with pytest.raises(UserError, match=re.escape(one.reason)):
            run.figure(one.name)
    with pytest.raises(UserError, match="no figure 'gant'; nearest: gantt"):
        run.figure("gant")


def test_the_history_is_the_fold_of_the_journal(path: Path) -> None:
    assert Run(path).history == fold(read_events(path / "events.jsonl"), ("node-a", "node-b"))


def test_the_report_is_written(path: Path, tmp_path: Path) -> None:
    assert Run(path).write_report() == path / "report.html"
    assert Run(path).write_report(tmp_path / "other.html").stat().st_size > 10_000


@pytest.mark.parametrize("name", RUNS)
def test_old_runs_open(name: str, tmp_path: Path, check_pinned: Callable[..., None]) -> None:
    run = Run(unpack(name, tmp_path))
    assert run.status == "finished"
    assert set(run.jobs["state"]) == {"done"}
    pinned = json.loads((Path(__file__).parents[1] / "old_runs" / "pinned" / f"{name}-report.json").read_text())
    assert run.summary["done"] == len(run.jobs)
    assert str(run.summary["done"]) in json.dumps(pinned)
    assert {"jobs", "metrics", "nodes", "penalties"} <= set(run.tables)
    assert "gantt" in run.figures
    assert Reader(run._repr_html_()).text.count(run.policy) == 1


def test_a_run_that_goes_on_is_read_as_far_as_it_went(source: Path, tmp_path: Path) -> None:
    growing = GrowingRun(source, tmp_path / "growing")
    growing.advance_past('"kind":"begin"')
    run = Run(growing.target)
    assert run.status == "preparing"
    assert run.scenario == {}
    growing.advance_past('"state":"done"')
    assert run.status == "preparing", "the state that was read is kept"
    assert run.refresh().status == "running"
    assert run.verdict.startswith("Not ended: it goes on, or its controller was killed; 1 of the ")
    assert run.jobs.filter(pl.col("state") == "done").height == 1
    assert run.summary["complete"] is False
    assert "Not ended" in run._repr_html_()
    growing.advance(growing.end_s)
    assert run.refresh().status == "finished"


def test_a_killed_run_without_its_results_and_last_line_is_read(path: Path) -> None:
    for name in ("summary.json", "jobs.csv"):
        (path / name).unlink()
    journal = (path / "events.jsonl").read_bytes().splitlines(keepends=True)
    (path / "events.jsonl").write_bytes(b"".join(journal[: len(journal) // 2])[:-3])
    run = Run(path)
    assert run.status == "running"
    assert run.jobs.height == 12
    assert run.metrics == {}
    assert "penalties" in run.tables or run.reschedulings.is_empty()
    assert "Not ended" in run._repr_html_()


def test_a_run_of_which_only_the_journal_is_left_has_no_points(path: Path) -> None:
    for file in path.iterdir():
        if file.name != "events.jsonl":
            file.unlink()
    run = Run(path)
    assert set(run.jobs["state"]) == {"done"}
    with pytest.raises(UserError, match=r"no points\.lp"):
        _ = run.caps
    assert "gantt" in run.figures


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda _path: None, "no such run directory"),
        (lambda path: path.write_text("a file"), "no such run directory"),
        (lambda path: path.mkdir(), "expected one with events.jsonl, as `testbed run` writes it"),
    ],
)
def test_what_is_no_run_directory_is_refused(make: Callable[[Path], None], words: str, tmp_path: Path) -> None:
    make(tmp_path / "x")
    with pytest.raises(UserError, match=words) as caught:
        Run(tmp_path / "x")
    assert str(tmp_path / "x") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_broken_journal_is_told_with_its_line_and_shown_in_a_notebook(path: Path) -> None:
    lines = (path / "events.jsonl").read_text().splitlines(keepends=True)
    lines[3] = '{"kind": "<b>job</b>"}\n'
    (path / "events.jsonl").write_text("".join(lines))
    run = Run(path)
    with pytest.raises(UserError, match=re.escape("events.jsonl:4: ")):
        _ = run.jobs
    assert "events.jsonl:4: " in run._repr_html_()
    assert "<b>" not in run._repr_html_()


def _poison(path: Path) -> None:
    def manifest(data: dict) -> None:
        data["policy"] = data["scenario"]["name"] = EVIL
        data["nodes"] = {EVIL + name: {**facts, "cpu_model": EVIL} for name, facts in data["nodes"].items()}

    def summary(data: dict) -> None:
        data["failed"] = {EVIL: EVIL}

    _change(path / "manifest.json", manifest)
    _change(path / "summary.json", summary)


def test_values_of_nodes_are_escaped_in_a_notebook(path: Path) -> None:
    _poison(path)
    run = Run(path)
    for text in (run._repr_html_(), *(table._repr_html_() for table in run.tables.values())):
        found = Reader(text)
        assert "script" not in found.tags
        assert "evil.example" not in re.sub(r">[^<]*<", "", text), "not in an attribute, either"
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert "<script>alert('x')</script>" in Reader(run._repr_html_()).text
    assert "<script>" in Reader(run.tables["nodes"]._repr_html_()).text


def test_what_a_notebook_shows_needs_nothing_else(path: Path) -> None:
    text = Run(path)._repr_html_()
    assert re.findall(r'(?:src|href)="(?!data:)', text) == []
    assert 'src="data:image/svg+xml;base64,' in text


def test_long_tables_are_cut_in_a_notebook(path: Path) -> None:
    table = Run(path).tables["jobs"]
    many = type(table)(table.name, table.title, table.caption, table.columns, table.rows * 10, table.texts)
    assert Reader(many._repr_html_()).text.count("… and 70 more rows") == 1


def test_without_the_extras_all_but_frames_and_figures_works(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda _name: None)
    run = Run(path)
    for ask in (lambda: run.jobs, lambda: run.caps, lambda: run.journal, lambda: run.query("SELECT 1")):
        with pytest.raises(UserError, match=re.escape("data frames need polars: pip install 'dfrs-testbed[query]'")):
            ask()
    with pytest.raises(UserError, match=re.escape("pip install 'dfrs-testbed[report]'")):
        _ = run.figures
    assert {"jobs", "metrics"} <= set(run.tables)
    assert "<img" not in run._repr_html_()
    assert run.summary["done"] == 12
