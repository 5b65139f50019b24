"""`testbed init` and `testbed scenarios`: new scenario files are valid, and no file is overwritten unasked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from testbed.cli.init import init
from testbed.cli.scenarios import scenarios
from testbed.control.validation import validate
from testbed.errors import UserError
from testbed.packaged import packaged_scenarios
from testbed.scenario.new import Answers, scenario_text, usable_drivers

JOBS = "job_id,submit_time_s,tasks,cpu_need_frac,mem_req_frac,run_time_s\n1,0,1,1.0,0.5,60\n"


@given(
    st.sampled_from(["process", "libvirt", "docker"]), st.integers(1, 9), st.sampled_from([0.1, 1.0, 2.5]),
    st.integers(64, 1 << 20), st.booleans(),
)  # fmt: skip
def test_every_answer_makes_a_valid_scenario(
    tmp_path_factory: pytest.TempPathFactory, driver: str, nodes: int, cpus: float, memory_mib: int, real: bool
) -> None:
    folder = tmp_path_factory.mktemp("new")
    trace = folder / 'a "strange" name.csv'
    trace.write_text(JOBS)
    path = folder / "s.toml"
    path.write_text(
        scenario_text(Answers("mine", driver, nodes, cpus, memory_mib, trace if real else None, jobs=1 if real else 20))
    )
    assert validate(path) == []


def test_it_asks_for_what_is_not_given_and_writes_a_scenario_that_is_valid(tmp_path: Path) -> None:
    target = tmp_path / "My lab.toml"
    done = CliRunner().invoke(init, [str(target), "--cpus", "0.5"], input="\n3\n\n", standalone_mode=False)
    assert done.exception is None, done.output
    text = target.read_text()
    assert 'name = "my-lab"' in text
    assert text.count("[[nodes]]") == 3
    assert text.count("cpus = 0.5") == 3
    assert validate(target) == []


def test_nothing_is_asked_with_yes_and_nothing_overwritten_without_force(tmp_path: Path) -> None:
    target = tmp_path / "lab.toml"
    (tmp_path / "t.csv").write_text(JOBS)
    words = [str(target), "--yes", "--nodes", "1", "--trace", str(tmp_path / "t.csv")]
    assert CliRunner().invoke(init, words, standalone_mode=False).exception is None
    again = CliRunner().invoke(init, words, standalone_mode=False)
    assert isinstance(again.exception, UserError)
    assert "expected another file, or --force" in str(again.exception)
    assert CliRunner().invoke(init, [*words, "--force"], standalone_mode=False).exception is None


def test_a_driver_that_this_machine_lacks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.cli.bodies.init.usable_drivers", lambda: {"process": "needs nothing"})
    done = CliRunner().invoke(init, [str(tmp_path / "x.toml"), "--driver", "docker"], standalone_mode=False)
    assert str(done.exception) == "--driver docker: this machine lacks what it needs: expected process"


LOG = "1 0 0 60 2 -1 -1 2 600 -1 1 1 1 1 1 1 -1 -1\n"


def test_the_reading_of_a_log_is_told_or_given(tmp_path: Path) -> None:
    target, log = tmp_path / "lab.toml", tmp_path / "log.swf"
    log.write_text(LOG)
    words = [str(target), "--yes", "--force", "--trace", str(log)]
    done = CliRunner().invoke(init, words, standalone_mode=False)
    assert f"{log}: reading hpc2n, of hpc2n, processors, processors-estimates" in done.stderr
    assert 'reading = "hpc2n"' in target.read_text()
    done = CliRunner().invoke(init, [*words, "--reading", "processors"], standalone_mode=False)
    assert done.exception is None
    assert 'reading = "processors"' in target.read_text()
    assert "no reading 'hpc3n'" in refused(init, *words, "--reading", "hpc3n")


def test_a_reading_is_for_logs(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(JOBS)
    words = [str(tmp_path / "lab.toml"), "--yes", "--reading", "hpc2n"]
    assert refused(init, *words) == "--reading hpc2n: there is no log to read: expected --trace as well"
    assert "a job table takes no reading" in refused(init, *words, "--trace", str(tmp_path / "t.csv"))
    assert not (tmp_path / "lab.toml").exists()


def test_drivers_are_those_whose_services_are_there() -> None:
    assert list(usable_drivers(lambda _path: False)) == ["process"]
    assert usable_drivers({"/usr/bin/virsh", "/dev/kvm"}.__contains__)["libvirt"] == "libvirt is installed, with KVM"
    assert "emulated" in usable_drivers({"/usr/sbin/libvirtd"}.__contains__)["libvirt"]
    assert "docker" in usable_drivers({"/var/run/docker.sock"}.__contains__)


@pytest.mark.parametrize("name", sorted(packaged_scenarios()))
def test_a_packaged_scenario_is_copied_with_its_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(scenarios, ["copy", name], standalone_mode=False).exception is None
    assert validate(tmp_path / f"{name}.toml") == []
    again = CliRunner().invoke(scenarios, ["copy", name], standalone_mode=False)
    assert isinstance(again.exception, UserError)


def test_packaged_scenarios_are_listed_with_descriptions() -> None:
    rows = json.loads(CliRunner().invoke(scenarios, ["list", "--json"], standalone_mode=False).output)
    assert {row["name"] for row in rows} == set(packaged_scenarios())
    assert all(row["description"] for row in rows)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    done = CliRunner().invoke(scenarios, ["copy", "quickstrat"], standalone_mode=False)
    assert "nearest: quickstart" in str(done.exception)


def refused(command: object, *words: str) -> str:
    done = CliRunner().invoke(command, words, standalone_mode=False)  # type: ignore[arg-type]
    assert isinstance(done.exception, UserError), done.exception
    return str(done.exception)


def test_a_target_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for target in (tmp_path / "file" / "x.toml", tmp_path, tmp_path / ("x" * 300 + ".toml")):
        words = (str(target), "--yes", "--force")
        assert refused(init, *words).startswith(f"{target}: ")
        assert refused(scenarios, "copy", "quickstart", str(target), "--force").startswith(str(target))


def test_a_scenario_that_cannot_be_written_leaves_no_trace_of_it(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "file").write_text("")
    for target in (tmp_path / "taken", tmp_path / "file" / "x.toml"):
        assert refused(scenarios, "copy", "needs", str(target), "--force").startswith(str(target))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "taken"]


def test_an_invalid_scenario_does_not_replace_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "lab.toml"
    target.write_text("# mine\n")
    monkeypatch.setattr("testbed.cli.bodies.init.scenario_text", lambda _answers: "name = 1\n")
    assert "not written" in refused(init, str(target), "--yes", "--force")
    assert target.read_text() == "# mine\n"
    assert [path.name for path in tmp_path.iterdir()] == ["lab.toml"]


def test_a_trace_of_any_name_is_named(tmp_path: Path) -> None:
    trace = tmp_path / "jobs \N{GRINNING FACE}.csv"
    trace.write_text(JOBS)
    words = [str(tmp_path / "x.toml"), "--yes", "--trace", str(trace)]
    assert CliRunner().invoke(init, words, standalone_mode=False).exception is None
    assert trace.name in (tmp_path / "x.toml").read_text()


def test_a_scenario_is_not_copied_over_its_own_trace(tmp_path: Path) -> None:
    assert "is the name of the scenario's trace" in refused(scenarios, "copy", "needs", str(tmp_path / "needs.csv"))
