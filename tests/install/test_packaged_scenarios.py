"""Scenarios and campaigns by name: in Python, and for a user in an empty folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.live import HANG_S

from testbed.cli.bodies.lab import _which
from testbed.cli.bodies.lease import find_broker
from testbed.errors import UserError
from testbed.packaged import find_campaign, find_scenario, packaged_campaigns, packaged_folder, packaged_scenarios
from testbed.scenario.schema import load_scenario
from testbed.study.checks.settings import Settings

NAMES = {
    "dfrs-within", "dps-linear", "hpc2n-hour", "kvm-two-nodes", "needs", "quickstart", "xen-nested", "xge",
    "xge-guests",
}  # fmt: skip
ROOT = Path(__file__).parents[2]


def command(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "testbed", *words], cwd=cwd, capture_output=True, text=True, check=False,
        timeout=HANG_S,
    )  # fmt: skip


def refused(result: subprocess.CompletedProcess[str], *words: str) -> None:
    assert result.returncode == 2, result.stdout + result.stderr
    (line,) = result.stderr.splitlines()
    for word in words:
        assert word in line


def test_the_packaged_files_are_those_of_the_project() -> None:
    """There is one copy, and an installed wheel has the same files."""
    assert set(packaged_scenarios()) == NAMES
    project = {path.relative_to(ROOT / "scenarios"): path.read_bytes() for path in (ROOT / "scenarios").rglob("*.*")}
    packaged = {path.relative_to(packaged_folder()): path.read_bytes() for path in packaged_folder().rglob("*.*")}
    assert packaged == project
    assert len(packaged_campaigns()) == 8


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_name_is_found_with_what_its_file_names(name: str) -> None:
    path = find_scenario(name)
    trace = load_scenario(path).workload.trace
    assert path == find_scenario(f"{name}.toml")
    assert trace is None or trace.is_file()


def test_a_file_wins_over_a_name_and_a_folder_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder, file = tmp_path / "quickstart", tmp_path / "xen-nested"
    folder.mkdir()
    file.touch()
    assert find_scenario("quickstart") == packaged_scenarios()["quickstart"]
    assert find_scenario("xen-nested") == Path("xen-nested")


@pytest.mark.parametrize("text", ["quickstrat", "scenarios/quickstrat.toml", "/none/quickstrat"])
def test_an_unknown_name_gets_the_nearest_and_the_list(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        find_scenario(text)
    said = str(error.value)
    assert said.startswith(f"{text}: no such scenario file or name; nearest: quickstart; packaged: ")
    assert all(name in said for name in NAMES)


def test_an_unknown_campaign_gets_the_nearest() -> None:
    with pytest.raises(UserError, match="nearest: your-hardware; packaged: ipdps-tables, knows-cost, "):
        find_campaign("my-hardware")


def test_references_of_a_packaged_lab_are_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings.checked(Path("quickstart"), "", None, None, 5, update=True)
    assert settings.references.resolve() == tmp_path / "references.toml"
    lab = tmp_path / "labs" / "own.toml"
    lab.parent.mkdir()
    lab.write_bytes(find_scenario("quickstart").read_bytes())
    assert Settings.checked(lab, "", None, None, 5, update=True).references == lab.with_name("references.toml")


def test_lab_down_takes_the_name_of_a_scenario_unless_a_lab_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[str] = []
    monkeypatch.setattr("testbed.cli.bodies.lab.known_labs", lambda: known)
    assert _which("kvm-two-nodes") == "kvm"
    known.append("kvm-two-nodes")
    assert _which("kvm-two-nodes") == "kvm-two-nodes"


def test_lab_who_and_take_find_the_lab_of_a_scenario_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.cli.bodies.lease.known_labs", list)
    monkeypatch.setattr("testbed.cli.bodies.lease.find", lambda _lab: None)
    with pytest.raises(UserError, match=r"^lab kvm: not one in a box"):
        find_broker("kvm-two-nodes", None)
    assert find_broker("kvm-two-nodes", "mqtt://127.0.0.1:1")[1] == "kvm-two-nodes"


def test_the_lists_name_all(tmp_path: Path) -> None:
    scenarios, campaigns = command("run", "--list", cwd=tmp_path), command("campaign", "--list", cwd=tmp_path)
    assert (scenarios.returncode, campaigns.returncode) == (0, 0), scenarios.stderr + campaigns.stderr
    assert {line.split()[0] for line in scenarios.stdout.splitlines()} == NAMES
    assert all(len(line.split()) > 4 for line in scenarios.stdout.splitlines()), "each with its description"
    assert {line.split()[0] for line in campaigns.stdout.splitlines()} == set(packaged_campaigns())


@pytest.mark.parametrize(
    "words",
    [["run"], ["calibrate", "--dry-run"], ["check"], ["lab", "up"]],
    ids=" ".join,
)
def test_every_command_that_takes_a_scenario_takes_its_name(words: list[str], tmp_path: Path) -> None:
    refused(command(*words, "quickstrat", cwd=tmp_path), "quickstrat", "nearest: quickstart", "packaged: dfrs-within")


def test_a_run_without_scenario_says_what_there_is(tmp_path: Path) -> None:
    refused(command("run", cwd=tmp_path), "testbed run --list")


def test_a_packaged_scenario_is_rehearsed_from_an_empty_folder(tmp_path: Path) -> None:
    done = command("run", "quickstart", "--dry-run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert '"jobs": 12' in done.stdout


def test_trials_on_a_packaged_lab_are_rehearsed_from_an_empty_folder(tmp_path: Path) -> None:
    done = command("calibrate", "quickstart", "--quick", "--experiments", "bus", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "trials, about" in done.stdout


@pytest.mark.parametrize("name", ["run", "check", "calibrate", "lab"])
def test_the_help_has_an_example_with_a_name(name: str, tmp_path: Path) -> None:
    said = command(name, "--help", cwd=tmp_path).stdout
    assert "quickstart" in said.split("Example")[1] or "kvm-two-nodes" in said.split("Example")[1]
