"""Pages of runs: complete, broken and hostile runs, several runs; and a page in a browser."""

import csv
import json
import re
import shutil
from pathlib import Path

import pytest
from support.report.page_reader import Reader
from support.report.rehearsed_run import rehearse

from testbed.errors import UserError
from testbed.study.report.page import document as page_module
from testbed.study.report.page.document import comparison_page, render, run_page, write_page
from testbed.study.report.page.style import Absent, inline_svg
from testbed.study.report.run.comparison import Band, _words, band_of, groups_of, same_runs, verdicts
from testbed.study.report.run.facts import read_facts
from testbed.study.report.run.response_times import response_table, response_times
from testbed.study.report.run.run_data import load_run_data

CHROMIUM = "/usr/bin/chromium"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return rehearse(tmp_path_factory.mktemp("runs") / "2026-11-21T10-29-37-quickstart")


@pytest.fixture
def run(source, tmp_path):
    return shutil.copytree(source, tmp_path / source.name)


def page_of(path):
    return run_page(load_run_data(path))


@pytest.fixture
def words_only(monkeypatch):
    """Leave out the drawings, which take most of the time."""
    monkeypatch.setattr(page_module, "inline_svg", lambda _chart, _width_in, variant: f"<svg class={variant}></svg>")


def reader_of(path):
    return Reader(render(page_of(path)))


def change(path, act):
    data = json.loads(path.read_text())
    act(data)
    path.write_text(json.dumps(data))


def test_the_page_of_a_run_is_whole_and_stands_alone(run):
    text = render(page_of(run))
    found = Reader(text)
    assert "Complete: all 12 jobs done, none failed." in found.text
    assert {"gantt", "utilisation", "stretch", "penalty", "bandwidth", "caps", "cap_error"} <= set(found.ids)
    assert {"jobs", "penalties", "metrics", "latencies", "nodes"} <= set(found.ids)
    assert not {"script", "link", "img"} & set(found.tags)
    assert len(found.ids) == len(set(found.ids))
    for address in found.addresses:
        assert address.startswith(("#", "data:image/png;base64,")), address
        assert not address.startswith("#") or address[1:] in found.ids
    assert not re.findall(r"url\((?!#)", text)
    assert found.tags.count("figcaption") == found.tags.count("figure")
    assert all(re.search(r"n = \d|of 12|\d+ windows", chart.caption) for chart in page_of(run).charts)
    for word in ("run tag", "GreedyPM */per/OPT=MIN/MINVT=600", '"time_scale": 50.0', "kernel", "numpy"):
        assert word in found.text


@pytest.mark.slow
def test_the_same_run_gives_the_same_page(run):
    assert render(page_of(run)) == render(page_of(run))


def test_what_a_scenario_or_a_failure_says_is_text_and_no_markup(run, words_only):
    evil = "<script>alert('x')</script><img src=//evil.example onerror=alert(1)>&$x^2$"

    def rename(manifest):
        manifest["scenario"].update(name=evil, description=evil)
        manifest["policy"] = evil
        manifest["nodes"] = {evil + name: facts for name, facts in manifest["nodes"].items()}
        manifest["versions"][evil] = evil

    def fail(summary):
        summary["failed"] = {"71": evil}

    change(run / "manifest.json", rename)
    change(run / "summary.json", fail)
    gantt = next(chart for chart in page_of(run).charts if chart.name == "gantt")
    drawing = Reader(inline_svg(gantt, 4.3, "narrow"))
    assert "<script>alert" in drawing.text, "a node's name is in the figure"
    found = reader_of(run)
    for tag in ("script", "img"):
        assert tag not in found.tags + drawing.tags
    assert found.text.count("<script>alert('x')</script>") >= 5
    assert "Complete, but not all jobs succeeded: 12 of 12 jobs done, 1 failed." in found.text
    assert f"Job 71 failed (unknown): {evil}" in found.text


def test_a_run_whose_controller_was_killed_has_a_page_that_says_so(run, words_only):
    for name in ("summary.json", "jobs.csv"):
        (run / name).unlink()
    journal = (run / "events.jsonl").read_bytes()
    (run / "events.jsonl").write_bytes(journal[: len(journal) * 6 // 10])  # in the middle of a line
    points = (run / "points.lp").read_bytes()
    (run / "points.lp").write_bytes(points[: len(points) * 6 // 10])
    page = page_of(run)
    assert page.verdict.startswith("Incomplete: the controller ended before it wrote a summary; ")
    assert not page.well
    assert not page.headlines
    found = Reader(render(page))
    assert "Without summary.json there are no metrics" in found.text
    assert {"gantt", "utilisation", "jobs"} <= set(found.ids)
    done = int(re.search(r"summary; (\d+) of the (\d+) jobs", page.verdict)[1])
    assert 0 < done < 12
    facts = read_facts(run)
    assert sum(job.state == "done" for job in facts.jobs) == done
    assert len(facts.jobs) == 12  # including jobs that were not yet submitted
    assert all(job.cpu_need_frac > 0 and job.run_time_s > 0 for job in facts.jobs)


def test_a_run_that_died_before_any_job_has_a_page(run, words_only):
    for name in ("summary.json", "jobs.csv", "manifest.json"):
        (run / name).unlink()
    (run / "events.jsonl").write_text((run / "events.jsonl").read_text().split("\n")[0] + "\n")
    (run / "points.lp").write_text("")
    page = page_of(run)
    absent = [one for section in page.sections for one in section.figures if isinstance(one, Absent)]
    assert len(absent) == 7
    assert not page.charts
    assert "No task was started while this run lasted." in Reader(render(page)).text


def test_points_that_an_older_version_lacked_leave_a_sentence(run, words_only):
    old = [line for line in (run / "points.lp").read_text().splitlines() if line.startswith(("node,", "job,"))]
    (run / "points.lp").write_text("\n".join(old) + "\n")
    found = reader_of(run)
    assert "No cap was constant for long enough" in found.text
    assert "This run has no points of operations." in found.text
    assert "This run has no points of supersteps" in found.text
    (run / "points.lp").unlink()
    assert "Figures of points are missing" in reader_of(run).text


def test_a_journal_that_is_none_is_an_error_that_names_the_line(run):
    lines = (run / "events.jsonl").read_text().splitlines()
    lines[3] = "{not json"
    (run / "events.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match=r"events\.jsonl:4: damaged: it has no checksum"):
        load_run_data(run)


@pytest.mark.parametrize("keep", [0, 1])
def test_pages_of_no_job_done_and_of_one_job(run, words_only, keep):
    rows = (run / "jobs.csv").read_text().splitlines()
    (run / "jobs.csv").write_text("\n".join(rows[: 1 + keep]) + "\n")
    entries = (run / "events.jsonl").read_text().splitlines()
    kept = [line for line in entries if keep or '"state":"done"' not in line]
    (run / "events.jsonl").write_text("\n".join(kept) + "\n")
    page = page_of(run)
    assert page.verdict == ("Complete: the one job was done." if keep else "Complete: all 0 jobs done, none failed.")
    text = Reader(render(page)).text
    assert ("No job was done, so that no stretch is known." in text) == (not keep)


# several runs


@pytest.fixture
def repeats(source, tmp_path):
    """Three repeats, and two runs of another policy: one beyond the repeats' stretches, one within."""
    found = []
    for number, (policy, stretch) in enumerate([("A", 2.0), ("A", 2.2), ("A", 2.4), ("B", 2.6), ("C", 2.1)]):
        path = shutil.copytree(source, tmp_path / f"run-{number}")

        def rename(manifest, policy=policy, number=number):
            manifest.update(policy=policy, run_tag=f"tag-{number}")

        def measure(summary, policy=policy, stretch=stretch):
            summary["policy"] = policy
            summary["metrics"]["max_stretch"]["value"] = stretch

        change(path / "manifest.json", rename)
        change(path / "summary.json", measure)
        found.append(path)
    return found


def test_policies_are_held_against_the_band_of_repeats(repeats):
    groups = groups_of([read_facts(path) for path in repeats])
    assert [(group.policy, len(group.runs)) for group in groups] == [("A", 3), ("B", 1), ("C", 1)]
    band = band_of(groups[0], "max_stretch")
    assert (band.count, band.low, band.high, band.mean.value) == (3, 2.0, 2.4, pytest.approx(2.2))
    assert band.mean.high - band.mean.value == pytest.approx(4.302653 * 0.2 / 3**0.5)
    assert band_of(groups[1], "max_stretch") is None
    words = {one.group.policy: (one.words, one.inside) for one in verdicts(groups, ["max_stretch"])}
    assert words == {
        "B": ("outside the noise band, above it by 8.3% of its edge", False),
        "C": ("inside the noise band: no difference shown", True),
    }


def test_only_runs_of_one_workload_are_compared_and_a_copy_is_no_repeat(repeats):
    change(repeats[3] / "manifest.json", lambda manifest: manifest.update(seed=2))
    change(repeats[2] / "manifest.json", lambda manifest: manifest.update(run_tag="tag-0"))
    runs = [read_facts(path) for path in repeats]
    groups = groups_of(runs)
    assert [run.name for run in same_runs(runs)] == ["run-2"]
    assert [len(group.runs) for group in groups] == [2, 1, 1]
    assert [one.group.policy for one in verdicts(groups, ["max_stretch"])] == ["C"]


def test_the_page_of_several_runs_sets_them_side_by_side(repeats, words_only):
    page = comparison_page([load_run_data(path) for path in repeats])
    found = Reader(render(page))
    assert found.text.count("5 runs of quickstart") >= 2
    assert {"runs", "metrics", "bands", "verdicts", "stretch", "gantt"} <= set(found.ids)
    assert len(found.ids) == len(set(found.ids))
    assert "outside the noise band, above it by 8.3% of its edge" in found.text
    alone = comparison_page([load_run_data(path) for path in repeats[2:4]])
    assert "there is no noise band" in Reader(render(alone)).text


@pytest.fixture
def shared(source, tmp_path):
    """Three runs under DPS/bank and one under DPS/none, with one parallel job each, which failed in a further run."""
    found = []
    for number, (policy, end_s) in enumerate(
        [("DPS/bank", 100.0), ("DPS/bank", 110.0), ("DPS/bank", 120.0), ("DPS/bank", None), ("DPS/none", 150.0)]
    ):
        path = shutil.copytree(source, tmp_path / f"shared-{number}")

        def rename(manifest, policy=policy, number=number):
            manifest.update(policy=policy, run_tag=f"tag-{number}")

        change(path / "manifest.json", rename)
        with (path / "jobs.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        first = rows[0]
        first.update(tasks="4", submit_time_s="10", start_time_s="15", end_time_s="" if end_s is None else str(end_s))
        first["state"] = "failed" if end_s is None else "done"
        for row in rows[1:]:
            row["tasks"] = "1"
        with (path / "jobs.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(first))
            writer.writeheader()
            writer.writerows(rows)
        found.append(path)
    return found


def test_response_times_of_parallel_jobs_have_intervals_over_repeats(shared):
    groups = groups_of([read_facts(path) for path in shared])
    bank, none = response_times(groups)
    assert (bank.policy, bank.values_s, bank.tasks) == ("DPS/bank", (90.0, 100.0, 110.0), 4)
    assert bank.waits_s == (5.0, 5.0, 5.0)
    assert bank.mean.value == pytest.approx(100.0)
    assert bank.mean.high - bank.mean.value == pytest.approx(4.302653 * 10.0 / 3**0.5)
    assert (none.values_s, none.mean) == ((140.0,), None)
    table = response_table([bank, none])
    assert [row[3:6] for row in table.rows] == [("3", "100.0", "75.2 to 124.8"), ("1", "140.0", "–")]  # noqa: RUF001


def test_only_pages_of_runs_with_shares_have_response_times(shared, repeats, words_only):
    page = Reader(render(comparison_page([load_run_data(path) for path in shared])))
    assert {"responses-section", "responses", "responses-table"} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert "75.2 to 124.8" in page.text
    plain = Reader(render(comparison_page([load_run_data(path) for path in repeats])))
    assert "responses-section" not in plain.ids


def test_a_run_is_set_against_another(source, repeats, words_only):
    other = load_run_data(repeats[0]).schedule
    page = run_page(load_run_data(source), [other])
    found = Reader(render(page))
    assert "difference" in found.ids
    assert "100% were at the same time on the same node in both" in found.text


def test_a_page_that_cannot_be_written_is_named(run, tmp_path, words_only):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="choose another place with --out"):
        write_page(page_of(run), tmp_path / "file" / "report.html")


@pytest.mark.slow
def test_a_browser_shows_pages_without_network_script_errors_or_sideways_scrolling(run, repeats, tmp_path):
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not Path(CHROMIUM).exists():
        pytest.skip(f"{CHROMIUM} is not installed")
    write_page(page_of(run), tmp_path / "one.html")
    write_page(comparison_page([load_run_data(path) for path in repeats]), tmp_path / "several.html")
    options = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=options)
        for name in ("one.html", "several.html"):
            for width, scheme in ((1280, "light"), (400, "dark")):
                tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
                said, asked = [], []
                tab.on("console", lambda message, said=said: said.append(message.text))
                tab.on("pageerror", lambda error, said=said: said.append(str(error)))
                tab.on("request", lambda request, asked=asked: asked.append(request.url))
                address = (tmp_path / name).as_uri()
                tab.goto(address)
                assert said == []
                assert asked == [address]
                wide = tab.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, f"{name} is {wide} px wide on {width}"
                shown = tab.evaluate("[...document.querySelectorAll('svg')].filter(s => s.clientWidth > 0).length")
                assert shown == tab.locator("figure").count(), "one drawing of each figure is shown"
                small = tab.evaluate(
                    "Math.min(...[...document.querySelectorAll('figure:not(#gantt) svg')]"
                    ".filter(s => s.clientWidth > 0)"
                    ".flatMap(s => [...s.querySelectorAll('text')].map(t => "
                    "parseFloat(getComputedStyle(t).fontSize) * s.clientWidth / s.viewBox.baseVal.width)))"
                )
                assert small >= 7.5, f"{name}: text of {small} px on {width}"
                tab.close()
        browser.close()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1.5, 1.7], "inside the noise band: no difference shown"),
        ([0.5, 1.5], "partly inside: 1 of 2 runs within the noise band"),
        ([0.5, 2.5], "on both sides of the noise band: no run within it"),
    ],
)
def test_runs_that_are_not_beyond_the_band_on_one_side_show_no_difference(values: list[float], words: str) -> None:
    assert _words(Band(2, 1.0, 2.0, None), values) == (words, True)
