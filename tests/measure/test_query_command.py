"""`testbed query`: SQL over runs, its output, its messages about wrong SQL; the documentation's examples."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner, Result

from testbed.cli.query import query
from testbed.errors import UserError
from testbed.measure.points import to_line
from testbed.measure.rundir import JOB_COLUMNS
from testbed.measure.tables import TABLES

DOCUMENT = Path(__file__).parents[2] / "docs" / "queries.md"
BEGIN_NS = 1795256989_000000000
TAGS = {"run": "first", "lab": "local", "policy": "GreedyPM */per/OPT=MIN/MINVT=600"}


def make_run(folder: Path, name: str, *, ended: bool = True) -> Path:
    """A run of one job on two nodes: one second busy, two seconds not."""
    run = folder / name
    run.mkdir()
    tags = {**TAGS, "run": name}
    lines = []
    for second, busy in enumerate((0.25, 1.0, 0.5)):
        for node in ("node-a", "node-b"):
            at = BEGIN_NS + second * 10**9 + 7
            lines.append(to_line("node", {**tags, "node": node}, {"cpu_frac": busy}, at))
            guest = {**tags, "node": node, "job": "72", "task": "0"}
            window = {"requested_cores": 0.5, "achieved_cores": busy / 2, "window_s": 3.0}
            lines.append(to_line("cap", guest, window, at))
    phases = {"save_s": 2.0, "penalty_s": 5.5, "saved_bytes": 4 << 20}
    moved = {**tags, "job": "72", "reason": "preemption", "mechanism": "save-restore"}
    lines.append(to_line("rescheduling", moved, phases, BEGIN_NS + 2 * 10**9))
    (run / "points.lp").write_text("".join(line + "\n" for line in lines))
    (run / "events.jsonl").write_text('{"t_s":0.1,"kind":"begin","trace_s":0.0}\n{"t_s":0.2,"kind":"dec')
    (run / "manifest.json").write_text(json.dumps({"run": name, "scenario": {"lab": "local"}}))
    if ended:
        row = "72,0.0,2,1.0,0.1,23.0,0.5,51.0,2.2,23.0,1,0,5.5,4194304,0"
        (run / "jobs.csv").write_text(f"{','.join(JOB_COLUMNS)}\n{row}\n")
    return run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path, "first")


def ask(*words: object) -> Result:
    return CliRunner().invoke(query, [str(word) for word in words])


def rows(*words: object) -> list[dict[str, object]]:
    result = ask(*words, "--json")
    assert result.exception is None, result.exception
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def refusal(*words: object) -> str:
    result = ask(*words)
    assert isinstance(result.exception, UserError), result.exception
    assert "\n" not in str(result.exception)
    return str(result.exception)


def test_the_examples_of_the_help_answer(run: Path) -> None:
    examples = [" ".join(sql.split()) for sql in re.findall(r'query RUN "(SELECT.*?)"', query.help or "", re.DOTALL)]
    answers = [rows(run, sql) for sql in examples]
    assert answers == [
        [{"node": node, "requested": 0.5, "achieved": pytest.approx(1.75 / 6)} for node in ("node-a", "node-b")],
        [{"job": 72, "reschedulings": 1, "penalty_s": 5.5}],
        [{"second": "10:29:50", "busy_frac": 1.0}],
    ]


EXAMPLES = re.findall(
    r'```sh\ntestbed query \S+ "([^"]*)"\n```\n```text\n(.*?)\n```', DOCUMENT.read_text(encoding="utf-8"), re.DOTALL
)


def test_the_document_has_its_examples() -> None:
    assert len(EXAMPLES) == DOCUMENT.read_text(encoding="utf-8").count("SELECT") == 3


@pytest.mark.parametrize(("sql", "shown"), EXAMPLES)
def test_the_examples_of_the_document_answer_with_the_columns_shown(run: Path, sql: str, shown: str) -> None:
    result = ask(run, sql)
    assert result.exception is None, result.exception
    headings = [[word.strip() for word in text.splitlines()[1].split("┃")] for text in (result.stdout, shown)]
    assert headings[0] == headings[1]
    assert len(result.stdout.splitlines()) > 4


def test_the_frames_of_the_document_work(run: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    exec(re.sub(r'run = "[^"]*"', f"run = {str(run)!r}", code), names)  # noqa: S102  # our own example
    assert names["error"] == pytest.approx((0.375 + 0 + 0.25) / 3)
    assert names["by_reason"].rows() == [("preemption", 5.5)]  # type: ignore[attr-defined]
    assert names["jobs"].height == 1  # type: ignore[attr-defined]
    assert names["decisions"].is_empty()  # type: ignore[attr-defined]


def test_several_runs_are_told_apart(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, name) for name in ("first", "second")]
    counted = "SELECT run, COUNT(*) AS n FROM node GROUP BY run ORDER BY run"
    assert rows(*runs, counted) == [{"run": "first", "n": 6}, {"run": "second", "n": 6}]
    joined = (
        "SELECT n.run, COUNT(*) AS n FROM cap AS n JOIN jobs AS j ON n.job = j.job_id AND n.run = j.run "
        "GROUP BY n.run ORDER BY n.run"
    )
    assert [row["n"] for row in rows(*runs, joined)] == [6, 6]


def test_a_run_that_is_going_on_answers(tmp_path: Path) -> None:
    run = make_run(tmp_path, "now", ended=False)
    with (run / "points.lp").open("a") as points:
        points.write("node,node=node-a cpu_fr")
    assert rows(run, "SELECT MAX(cpu_frac) AS most FROM node") == [{"most": 1.0}]
    assert rows(run, "SELECT kind, run FROM events") == [{"kind": "begin", "run": "now"}]
    result = ask(run, "SELECT * FROM jobs", "--csv")
    assert result.stdout.strip() == ",".join((*JOB_COLUMNS, "run"))
    assert "has not ended" in result.stderr


def test_text_and_files_hold_the_same(run: Path, tmp_path: Path) -> None:
    sql = "SELECT time, node, cpu_frac FROM node ORDER BY time, node"
    listed = rows(run, sql)
    assert listed[0] == {"time": "2026-11-21T10:29:49.000000007Z", "node": "node-a", "cpu_frac": 0.25}
    printed = list(csv.DictReader(io.StringIO(ask(run, sql, "--csv").stdout)))
    assert [{**row, "cpu_frac": float(row["cpu_frac"])} for row in printed] == listed
    for name in ("rows.parquet", "rows.csv", "rows.json"):
        assert ask(run, sql, "--out", tmp_path / name).exception is None
    assert pl.read_parquet(tmp_path / "rows.parquet")["time"].cast(pl.Int64).to_list()[0] == BEGIN_NS + 7
    assert json.loads((tmp_path / "rows.json").read_text()) == listed
    assert (tmp_path / "rows.csv").read_text() == ask(run, sql, "--csv").stdout
    assert not list(tmp_path.glob("*.part"))


def test_numbers_that_json_lacks_are_null(run: Path) -> None:
    assert rows(run, "SELECT cpu_frac / 0 AS x, 1 AS one FROM node LIMIT 1") == [{"x": None, "one": 1}]


def test_a_long_answer_is_cut_and_says_so(run: Path) -> None:
    result = ask(run, "SELECT a.cpu_frac FROM node AS a CROSS JOIN node AS b CROSS JOIN node AS c")
    assert result.stdout.count("│") == 2 * 100
    assert "116 more rows" in result.stderr


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("SELECT * FROM nodee", "nearest: node"),
        ("SELECT cpu_fraq FROM node", "nearest: cpu_frac"),
        ("SELECT SUM(node.cpu_fraq) FROM node GROUP BY node", "nearest: cpu_frac"),
        ("SELECT n.cpu_fraq FROM node AS n", "nearest: cpu_frac"),
        ("SELECT zzz FROM node", "columns: testbed query --tables"),
        ("SELECT * FROM zzz", "tables: node, "),
        ("SELCT 1", "an SQL statement"),
        ("SELECT nope(cpu_frac) FROM node", "'nope'"),
        ("SELECT node + 1 FROM node", "SQL: "),
        ("", "no SQL after the run directories"),
    ],
)
def test_wrong_sql_is_told_in_one_line(run: Path, sql: str, told: str) -> None:
    assert told in refusal(run, sql)


def test_wrong_words_are_told(run: Path, tmp_path: Path) -> None:
    assert "no SQL" in refusal(run)
    assert "no run directory" in refusal("SELECT * FROM node")
    assert "no run directory" in refusal(tmp_path / "nowhere", "SELECT * FROM node")
    assert "expected one of them" in refusal(run, "SELECT * FROM node", "--csv", "--json")
    assert "expected one of them" in refusal(run, "--tables", "--flux", "cap")
    assert ".parquet" in refusal(run, "SELECT * FROM node", "--out", "x.xlsx")
    assert "cannot write" in refusal(run, "SELECT * FROM node", "--out", tmp_path / "none" / "x.csv")
    assert "CSV has no lists" in refusal(run, "SELECT ARRAY_AGG(cpu_frac) AS all FROM node", "--csv")


def test_polars_is_asked_for(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.cli.bodies.query.find_spec", lambda _: None)
    assert "dfrs-testbed[query]" in refusal(run, "SELECT * FROM node")


def test_tables_are_listed() -> None:
    listed = rows("--tables")
    assert {row["table"] for row in listed} == set(TABLES)
    assert {
        "table": "cap",
        "column": "window_s",
        "type": "float",
        "unit": "s",
        "meaning": "length of the window",
    } in listed
    assert list(csv.DictReader(io.StringIO(ask("--tables", "--csv").stdout))) == listed
    text = ask("--tables").stdout
    assert all(column.name in text for table in TABLES.values() for column in table.columns)


def test_flux_is_listed_and_printed(run: Path) -> None:
    names = [row["name"] for row in rows("--flux", "")]
    assert [line.split()[0] for line in ask("--flux").stdout.splitlines()] == names
    text = ask(run, "--flux", "cap", "--bucket", "mine").stdout
    assert 'from(bucket: "mine")' in text
    assert "range(start: 2026-11-21T10:28:49Z, stop: 2026-11-21T10:30:51Z)" in text
    assert 'r.lab == "local" and r.run == "first"' in text
    assert "every: 1s" in text
    assert "v." not in text
    everywhere = ask("--flux", "cap").stdout
    assert "v.timeRangeStart" in everywhere
    assert "r.run" not in everywhere
    assert "nearest: cap" in refusal("--flux", "caps")
    assert "one run directory at most" in refusal(run, run, "--flux", "cap")


def test_flux_of_a_run_without_points_is_refused(tmp_path: Path) -> None:
    (tmp_path / "points.lp").write_text("half a li")
    assert "no points yet" in refusal(tmp_path, "--flux", "cap")
