"""The command `testbed report`: its files, its output, and its messages about mistakes."""

import importlib.util
import json
import re
import shutil

import pytest
from click.testing import CliRunner
from support.entries import event, sealed
from support.report.rehearsed_run import rehearse

from testbed.cli.report import report
from testbed.errors import UserError
from testbed.study.report.browser.log import ERROR, WARNING, describe
from testbed.study.report.page import document as page_module


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return rehearse(tmp_path_factory.mktemp("runs") / "one")


@pytest.fixture
def run(source, tmp_path, monkeypatch):
    """A copy of a run; pages are written without their drawings, which other tests cover."""
    monkeypatch.setattr(page_module, "inline_svg", lambda _chart, _width_in, variant: f"<svg class={variant}></svg>")
    return shutil.copytree(source, tmp_path / "one")


def call(*arguments):
    """Run the command; errors of the testbed propagate, because only the entry point turns them into exit codes."""
    result = CliRunner().invoke(report, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_tables_are_printed_and_the_page_lies_beside_the_run(run):
    result = call(run)
    assert result.exit_code == 0
    assert "Rescheduling penalties" in result.stdout
    assert "degradation from bound" in result.stdout
    assert f"page: {run / 'report.html'}" in result.stderr
    first = (run / "report.html").read_bytes()
    assert call(run).exit_code == 0
    assert (run / "report.html").read_bytes() == first


def test_what_cannot_be_true_and_what_was_not_compared_is_told(run):
    journal = (run / "events.jsonl").read_text().splitlines()
    entries = [
        {"t_s": 12.0, "kind": "doubt", "trace_s": 600.0, "job": 72, "task": 1, "node": 0, "reason": "too soon <b>"},
        {"t_s": 99.0, "kind": "results", "trace_s": 5000.0, "right": 10, "wrong": {}, "unchecked": {"no time": [3, 4]}},
    ]
    journal = [line for line in journal if json.loads(line)["kind"] != "results"]
    (run / "events.jsonl").write_text("\n".join([*journal, *map(sealed, entries)]) + "\n")
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "doubts": {"72": "task 1: too soon <b>"}}))
    result = call(run)
    assert "job 72 is doubtful: task 1: too soon <b>" in " ".join(result.stdout.split())
    page = (run / "report.html").read_text()
    assert "At 12.0 s job 72, task 1: too soon &lt;b&gt;" in page
    assert "Results that the controller did not compare, of 2 jobs: no time" in page


def test_json_is_all_that_standard_output_holds(run):
    data = json.loads(call(run, "--json", "--no-html").stdout)
    assert [one["run"] for one in data] == [str(run)]
    assert data[0]["metrics"]["max_stretch"]["unit"] == "1"
    assert not (run / "report.html").exists()
    (run / "summary.json").unlink()
    (one,) = json.loads(call(run, "--json").stdout)
    assert (one["complete"], one["jobs"], one["metrics"]) == (False, 12, {})


def test_a_run_without_a_summary_has_tables_and_a_page(run):
    (run / "summary.json").unlink()
    (run / "jobs.csv").unlink()
    result = call(run)
    assert result.exit_code == 0
    assert "its controller ended before it wrote a summary" in result.stdout
    assert "Incomplete: the controller ended" in (run / "report.html").read_text()


def test_several_runs_are_compared_where_out_says(run, source, tmp_path):
    result = call(run, source, "--no-html")
    assert result.stdout.count("max bounded stretch") == 3  # for each run, and in the comparison
    assert call(run, source).exit_code == 0
    assert not (run / "report.html").exists()
    call(run, source, "--out", tmp_path / "both" / "page.html")
    assert "2 runs of quickstart" in (tmp_path / "both" / "page.html").read_text()


def test_figures_are_written_in_every_format_that_is_named(run, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "testbed.cli.bodies.report_page.write_chart", lambda chart, _folder, form: drawn.append((chart.name, form))
    )
    result = call(run, "--figures", tmp_path / "figures", "--format", "svg, pdf")
    assert {form for _, form in drawn} == {"svg", "pdf"}
    assert {"gantt", "utilisation", "stretch", "penalty"} <= {name for name, _ in drawn}
    assert f"figures: {len(drawn) // 2} as svg, pdf" in result.stderr


def test_a_run_is_set_against_its_simulation_and_another_run(run, source):
    call(run, "--simulate", "--against", source, "--overheads", "constant:30")
    text = (run / "report.html").read_text()
    assert re.search(r"simulated[^<]*constant:30", text)
    assert 'id="difference-1"' in text
    assert 'id="difference-2"' in text


def test_without_the_extra_the_tables_are_printed_and_one_line_says_what_to_install(run, monkeypatch):
    known = importlib.util.find_spec
    monkeypatch.setattr(
        "testbed.cli.bodies.report.find_spec", lambda name: None if name == "matplotlib" else known(name)
    )
    result = call(run)
    assert result.exit_code == 0
    assert "max bounded stretch" in result.stdout
    assert result.stderr == "testbed: the page needs matplotlib: pip install 'dfrs-testbed[report]'\n"
    assert not (run / "report.html").exists()
    with pytest.raises(UserError, match=r"pip install 'dfrs-testbed\[report\]'"):
        call(run, "--out", run / "page.html")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--overheads", "constant:3"], "expected --simulate, too"),
        (["--no-html", "--simulate"], "--no-html writes no page"),
        (["--simulate", "--overheads", "konstant:3"], "konstant"),
        (["--against", "nowhere"], "nowhere: no such run directory"),
    ],
)
def test_options_that_do_not_fit_are_refused(run, options, words):
    with pytest.raises(UserError, match=words) as caught:
        call(run, *options)
    assert caught.value.exit_code == 2


def test_several_runs_have_no_simulation(run, source):
    with pytest.raises(UserError, match="are for one run"):
        call(run, source, "--simulate")


def test_a_format_that_there_is_not_is_refused(run):
    result = call(run, "--figures", "f", "--format", "svg,jpeg")
    assert result.exit_code == 2
    assert "svg,jpeg" in result.stderr


def test_what_is_no_run_directory_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"events\.jsonl: cannot read"):
        call(tmp_path)


def test_a_run_whose_policy_has_no_period_gets_its_page(run):
    path = run / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "period_s": None}))
    call(run)
    assert "none: the policy decides at events only" in (run / "report.html").read_text()


LOST = "could not restore: node-b: start: failed: image a.img: No such file or directory"


@pytest.mark.parametrize("kept", ["summary", "summary of an older version", "journal", "journal of an older version"])
def test_why_a_job_failed_is_shown_with_its_code(run, kept):
    code = {} if "older" in kept else {"code": "image-lost"}
    entry = {"t_s": 99.0, "kind": "job", "trace_s": 5000.0, "job": 72, "state": "failed", "detail": LOST, **code}
    with (run / "events.jsonl").open("a") as journal:
        journal.write(sealed(entry) + "\n")
    summary = json.loads((run / "summary.json").read_text())
    if kept.startswith("summary"):
        codes = {"failure_codes": {"72": "image-lost"}} if code else {}
        summary = {name: value for name, value in summary.items() if name != "failure_codes"}
        (run / "summary.json").write_text(json.dumps({**summary, "failed": {"72": LOST}, **codes}))
    else:
        (run / "summary.json").unlink()
        (run / "jobs.csv").unlink()
    text = call(run).stdout
    assert f"job 72 failed (image-lost): {LOST}" in " ".join(text.split())
    assert f"Job 72 failed (image-lost): {LOST}" in (run / "report.html").read_text()
    (one,) = json.loads(call(run, "--json", "--no-html").stdout)
    assert (one["failed"], one["failure_codes"]) == ({"72": LOST}, {"72": "image-lost"})


def test_a_page_in_the_browser_shows_the_code_of_a_failure():
    entry = {"kind": "job", "job": 71, "state": "failed", "detail": LOST}
    assert describe(event(entry), []) == (ERROR, f"job 71 failed (image-lost): {LOST}")
    assert describe(event({**entry, "code": "later"}), []) == (ERROR, f"job 71 failed (later): {LOST}")
    assert describe(event({"kind": "job", "job": 71, "state": "paused"}), []) == (WARNING, "job 71 paused")
