"""Every view of the slots of a run under XGE: a dry run of its scenario in virtual time."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console
from support.control.rehearsal import Watcher
from support.report.page_reader import Reader

from testbed import Run
from testbed.cli.report import report
from testbed.control.session import run_session
from testbed.control.snapshot import Snapshot
from testbed.lab.bring_up import dry_lab
from testbed.lab.virtual_time import run_in_virtual_time
from testbed.scenario.jobs import load_jobs
from testbed.scenario.schema import load_scenario
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.policies.xge_slots import IDLE, LENT, PARALLEL, SERIAL, TAKEN
from testbed.study.report.browser.changes import Page
from testbed.study.report.browser.state import RunState
from testbed.study.report.page.document import comparison_page, render, run_page
from testbed.study.report.run.run_data import load_run_data
from testbed.study.report.run.simulated import simulate_run
from testbed.study.report.run.slots import slots_of
from testbed.study.report.terminal.picture import draw

SCENARIOS = Path(__file__).parents[2] / "scenarios"


def rehearse(path: Path, name: str, watcher: Watcher) -> Path:
    scenario = load_scenario(SCENARIOS / f"{name}.toml")
    jobs = load_jobs(scenario, SCENARIOS / f"{name}.toml")
    run_in_virtual_time(run_session(scenario, parse(scenario.policy[0]), jobs, path, dry_lab, watcher))
    return path


@pytest.fixture(scope="module")
def watcher() -> Watcher:
    return Watcher()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, watcher: Watcher) -> Path:
    return rehearse(tmp_path_factory.mktemp("runs") / "xge", "xge", watcher)


def drawn(picture: Snapshot, width: int = 140) -> str:
    console = Console(file=StringIO(), width=width, height=40)
    console.print(draw("title", picture, (), width, 30))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]  # of StringIO
    return text


def test_the_terminal_names_the_slot_beside_a_node(run: Path, watcher: Watcher) -> None:
    assert run.exists()
    urgent = next(picture for picture in watcher.pictures if any(node.slot == TAKEN for node in picture.nodes))
    assert [node.slot for node in urgent.nodes] == [PARALLEL, PARALLEL, SERIAL, TAKEN]
    text = drawn(urgent)
    for words in ("node-1 parallel", "node-3 serial", "node-4 taken"):
        assert words in text
    before = next(picture for picture in watcher.pictures if picture.running == 8)
    assert [node.slot for node in before.nodes] == [LENT, LENT, SERIAL, SERIAL]
    assert "node-1 lent" in drawn(before, 60)
    assert [node.slot for node in watcher.pictures[-1].nodes] == [IDLE, IDLE, SERIAL, IDLE]


def test_the_live_page_has_the_slot_of_each_node(run: Path) -> None:
    state = RunState(run.name)
    page, slots, lines = Page(state), {}, (run / "events.jsonl").read_bytes().splitlines()
    state.feed_manifest(json.loads((run / "manifest.json").read_text()))
    seen: list[list[str]] = []
    for line in lines:
        state.feed_line(line)
        slots |= {node: value["slot"] for node, value in page.update().get("nodes", {}).items()}
        if json.loads(line)["kind"] == "outcome" and slots and [*slots.values()] not in seen[-1:]:
            seen.append([*slots.values()])
    assert [LENT, LENT, SERIAL, SERIAL] in seen
    assert [PARALLEL, PARALLEL, SERIAL, TAKEN] in seen
    assert [*slots.values()] == [IDLE] * 4


def test_the_report_has_the_bands_of_the_run_and_of_its_simulation(run: Path) -> None:
    material, twin = load_run_data(run), simulate_run(run).schedule
    page = run_page(material, [twin])
    (section,) = (one for one in page.sections if one.name == "schedule")
    assert [one.name for one in section.figures] == ["gantt", "difference", "slots", "utilisation"]
    (table,) = section.tables
    assert [row[0] for row in table.rows] == ["measured"] * 5 + [twin.name] * 5
    measured, simulated = slots_of(material.schedule), slots_of(twin)
    assert measured is not None
    assert simulated is not None
    assert measured.total == simulated.total, "operations of a dry run cost nothing"
    assert measured.total.taken == 1
    assert {"slots", "node_slots"} <= set(Reader(render(page)).ids)


def test_a_notebook_has_the_table_and_the_figure(run: Path) -> None:
    found = Run(run)
    assert [row[0] for row in found.tables["node_slots"].rows] == [f"node-{number}" for number in range(1, 5)] + ["all"]
    assert found.figure("slots").name == "slots"
    page = run_page(load_run_data(run))
    assert found.tables == {table.name: table for section in page.sections for table in section.tables}


def test_a_comparison_has_them_together(run: Path) -> None:
    material = load_run_data(run)
    (section,) = (one for one in comparison_page([material, material]).sections if one.name == "schedule")
    assert [one.name for one in section.figures] == ["gantt", "slots"]
    assert len(section.tables) == 1


def test_the_command_prints_them_as_a_table_and_as_json(run: Path) -> None:
    text = CliRunner().invoke(report, [str(run), "--no-html"]).output
    assert "Slots of nodes" in text
    (found,) = json.loads(CliRunner().invoke(report, [str(run), "--no-html", "--json"]).output)
    slots = slots_of(load_run_data(run).schedule)
    assert slots is not None
    assert found["slots"] == slots.as_json()
    assert found["done"] == 15


def test_other_runs_have_no_slots(tmp_path: Path) -> None:
    watcher = Watcher()
    run = rehearse(tmp_path / "quickstart", "quickstart", watcher)
    assert not any(node.slot for picture in watcher.pictures for node in picture.nodes)
    page = run_page(load_run_data(run))
    (section,) = (one for one in page.sections if one.name == "schedule")
    assert [one.name for one in section.figures] == ["gantt", "utilisation"]
    assert section.tables == ()
    state = RunState(run.name)
    state.feed_manifest(json.loads((run / "manifest.json").read_text()))
    for line in (run / "events.jsonl").read_bytes().splitlines():
        state.feed_line(line)
    assert not any("slot" in node for node in Page(state).update()["nodes"].values())
    (found,) = json.loads(CliRunner().invoke(report, [str(run), "--no-html", "--json"]).output)
    assert "slots" not in found
