"""Plug-ins of a whole run: recorders that receive it, and programs that its nodes must have."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.control.rehearsal import Watcher, rehearse, scenario

from testbed.cli.run import run
from testbed.control.admission import check_programs
from testbed.errors import UserError
from testbed.measure.points import to_line
from testbed.scheduling.workload.jobs import Job

Install = Callable[[str, str, str], Path]
JOBS = [Job(1, 0, 1, 1.0, 0.4, 120), Job(2, 60, 2, 0.5, 0.4, 60)]

RECORDERS = """
HEARD = []

class Whole:
    def open(self, path, manifest):
        self.path = path
        HEARD.append(("open", path, manifest))
    def journal(self, entry):
        HEARD.append(("journal", entry))
    def point(self, *point):
        HEARD.append(("point", point))
    def close(self):
        HEARD.append(("close", sorted(file.name for file in self.path.iterdir())))

class Weak(Whole):
    def journal(self, entry):
        if entry["kind"] == "outcome":
            raise OSError("no route")
    def point(self, *point):
        pass
    def close(self):
        pass
"""


def test_a_recorder_is_told_all_of_a_run_and_one_that_fails_does_not_hurt_it(
    tmp_path: Path, install_plugin: Install
) -> None:
    install_plugin("dfrs_told", RECORDERS, "[testbed.recorders]\nwhole = dfrs_told:Whole\nweak = dfrs_told:Weak\n")
    runs, watcher = tmp_path / "runs", Watcher()
    runs.mkdir()
    result, journal = rehearse(runs, JOBS, watcher=watcher, recorders=["whole", "weak"])
    assert result.summary["done"] == 2
    heard = sys.modules["dfrs_told"].HEARD
    (path, manifest), *_ = [call[1:] for call in heard if call[0] == "open" and "run" in call[2]]
    assert path == result.path
    assert manifest == json.loads((path / "manifest.json").read_text())
    told = [call[1] for call in heard if call[0] == "journal"]
    reports = [entry for entry in journal if entry["kind"] == "recorder"]
    assert [(entry["name"], entry["error"]) for entry in reports] == [("weak", "OSError: no route")]
    assert [line.split(" ", 1)[1] for line in watcher.lines if "left out" in line] == [
        "recorder weak is left out: OSError: no route"
    ]
    assert told == [entry for entry in journal if entry not in reports or entry in told]
    assert len(told) >= len(journal) - 1  # reports after the end of all jobs are only in the file
    points = [to_line(*call[1]) for call in heard if call[0] == "point"]
    assert points == (path / "points.lp").read_text().splitlines()
    ((_, files),) = [call for call in heard if call[0] == "close"]
    assert {"summary.json", "jobs.csv", "manifest.json"} <= set(files)


def test_an_unknown_recorder_is_told_before_anything_begins(tmp_path: Path, install_plugin: Install) -> None:
    install_plugin("dfrs_told", RECORDERS, "[testbed.recorders]\nwhole = dfrs_told:Whole\n")
    runs = tmp_path / "runs"
    runs.mkdir()
    with pytest.raises(UserError, match="recorders: unknown recorder 'whale'; nearest: whole"):
        rehearse(runs, JOBS, recorders=["whale"])
    assert list(runs.iterdir()) == []


def test_a_rehearsal_tells_recorders_nothing_but_their_names_are_checked(
    tmp_path: Path, install_plugin: Install
) -> None:
    install_plugin("dfrs_told", RECORDERS, "[testbed.recorders]\nwhole = dfrs_told:Whole\n")
    (tmp_path / "jobs.csv").write_text(
        "job_id,submit_time_s,tasks,cpu_need_frac,mem_req_frac,run_time_s\n1,0,1,1.0,0.4,300\n"
    )
    file = tmp_path / "s.toml"
    text = 'name = "s"\npolicy = "EASY"\ntime_scale = 60\nrecorders = ["whole"]\n'
    text += '[workload]\ntrace = "jobs.csv"\n[[nodes]]\nname = "a"\n'
    file.write_text(text)
    result = CliRunner().invoke(run, [str(file), "--dry-run", "--json"], standalone_mode=False)
    assert result.exception is None, result.output
    assert result.return_value == 0
    assert sys.modules["dfrs_told"].HEARD == []
    file.write_text(text.replace("whole", "whale"))
    result = CliRunner().invoke(run, [str(file), "--dry-run", "--json"], standalone_mode=False)
    assert isinstance(result.exception, UserError)
    assert "unknown recorder 'whale'; nearest: whole" in str(result.exception)


def test_a_program_that_nodes_lack_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"programs\.serial = 'eatcp': node node-0 has eatcpu, patterns; nearest: eatc"):
        rehearse(tmp_path, JOBS, programs={"serial": "eatcp"})
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match=r"programs\.parallel = 'fft': .*others are plug-ins"):
        rehearse(tmp_path, JOBS, programs={"parallel": "fft"})


def test_only_programs_that_the_jobs_run_must_be_there() -> None:
    chosen = scenario(programs={"serial": "fft"})
    known = {"a": ("eatcpu", "patterns")}
    check_programs(JOBS[1:], chosen, known)
    check_programs(JOBS, chosen, {"a": ()})  # the driver does not report its programs
    check_programs(JOBS, chosen, {"a": ("fft", "patterns")})
    with pytest.raises(UserError, match="node b has eatcpu"):
        check_programs(JOBS, chosen, {"a": ("fft", "patterns"), "b": ("eatcpu", "patterns")})


def test_a_plug_in_is_rehearsed_as_the_others(tmp_path: Path, install_plugin: Install) -> None:
    install_plugin("dfrs_fft", "", "[testbed.programs]\nfft = dfrs_fft:FFT\n")
    runs = tmp_path / "runs"
    runs.mkdir()
    result, _ = rehearse(runs, JOBS, programs={"serial": "fft", "parallel": "fft"})
    assert result.summary["done"] == 2
