"""A full disk ends the recording, with an error, but never the clean-up: on a real file system that is really full."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.control.rehearsal import BEST, Watcher, scenario
from support.disks import fill, small_disk
from support.live import HANG_S

from node_agent.agent import Agent
from node_agent.drivers.null import NullDriver
from testbed.bus.messages import GuestSpec
from testbed.control.session import run_session
from testbed.errors import RunError, UserError
from testbed.lab.bring_up import dry_lab
from testbed.lab.virtual_time import run_in_virtual_time
from testbed.measure.append_file import AppendFile
from testbed.measure.rundir import JOB_COLUMNS, RunDirectory, read_journal
from testbed.measure.spool import read_lines
from testbed.run.events import Aborted, Clock
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.workload.jobs import Job

DISK_MIB = 2
JOBS = [Job(1, 0, 1, 1.0, 0.4, 1200), Job(2, 60, 2, 1.0, 0.4, 900), Job(3, 120, 1, 1.0, 0.5, 1500)]
NODE = dict.fromkeys(
    ("cpu_frac", "memory_used_mib", "disk_read_mib", "disk_written_mib", "net_received_mib", "net_sent_mib"), 0.1
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of `DISK_MIB` in memory."""
    with small_disk(tmp_path / "disk", DISK_MIB) as place:
        yield place


def test_what_was_measured_until_then_is_kept_whole_and_results_have_room(disk: Path) -> None:
    told: list[RunError] = []
    run = RunDirectory(disk / "run", {"run": "r"})
    run.on_failure = told.append
    run.open()
    fill(disk, 100_000)
    for number in range(3000):
        run.point("node", {"node": "a"}, NODE, number)
        run.journal(Clock(float(number), 0.0, unix_ns=number))
    assert [str(failure) for failure in told] == [str(run.failure)]
    assert "cannot write: No space left on device" in str(run.failure)
    with pytest.raises(RunError, match="No space left"):
        run.sync()

    run.begin_results()
    run.journal(Aborted(3000.0, 0.0, reason=str(run.failure)))
    run.write_jobs([(index,) + (None,) * (len(JOB_COLUMNS) - 1) for index in range(2000)])
    run.write_summary({"complete": False})
    run.close()
    times = [int(line.rsplit(" ", 1)[1]) for line, _ in read_lines(run.path)]
    assert times == list(range(len(times)))
    assert 100 < len(times) < 3000
    entries = read_journal(run.path / "events.jsonl")
    assert entries.pop()["kind"] == "aborted"
    assert [entry["unix_ns"] for entry in entries] == list(range(len(entries)))
    assert 100 < len(entries) < 3000
    assert f"{len(entries) + 1} journal entries and {len(times)} points" in run.kept()
    assert (run.path / "events.jsonl").read_bytes().endswith(b"\n")
    assert len((run.path / "jobs.csv").read_text().splitlines()) == 2001
    assert json.loads((run.path / "summary.json").read_text()) == {"complete": False}
    assert not (run.path / ".reserve").exists()


def test_results_without_room_are_not_left_in_half(disk: Path) -> None:
    run = RunDirectory(disk / "run", {"run": "r"})
    run.open()
    run.begin_results()
    fill(disk, 8192)
    with pytest.raises(RunError, match=r"jobs\.csv: cannot write: No space left on device"):
        run.write_jobs([("x" * 100,) * len(JOB_COLUMNS)] * 1000)
    assert sorted(path.name for path in run.path.glob("[!.]*")) == ["events.jsonl", "points.lp"]
    run.close()


def test_a_run_that_has_no_room_to_begin_leaves_nothing(disk: Path) -> None:
    fill(disk, 1 << 19)
    with pytest.raises(UserError, match="cannot create the run directory: No space left on device"):
        RunDirectory(disk / "run", {"run": "r"}).open()
    assert not (disk / "run").exists()


def rehearse_on(disk: Path, monkeypatch: pytest.MonkeyPatch, watcher: Watcher) -> list[NullDriver]:
    """Make a dry run on that file system until it is full; return the nodes' drivers."""
    drivers: list[NullDriver] = []
    open_ = NullDriver.open

    async def remember(self: NullDriver, budget, tell):
        drivers.append(self)
        return await open_(self, budget, tell)

    monkeypatch.setattr(NullDriver, "open", remember)
    monkeypatch.setattr("testbed.control.session.check_disk", lambda _path, _scenario: None)  # images go elsewhere
    main = run_session(scenario(time_scale=2), parse(BEST), JOBS, disk / "run", dry_lab, watcher)
    with pytest.raises(RunError) as caught:
        run_in_virtual_time(main)
    assert caught.value.exit_code == 1
    words = str(caught.value)
    assert "\n" not in words
    assert "cannot write: No space left on device: the run was ended and its guests destroyed; kept in" in words
    assert words.endswith("jobs.csv, summary.json")
    return drivers


def test_a_full_disk_ends_the_run_with_its_guests_destroyed_and_its_results_written(
    disk: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[str] = []
    stopped: list[Agent] = []
    start, stop = NullDriver.start, Agent.stop

    async def count(self: NullDriver, spec: GuestSpec, cap_cores: float) -> None:
        await start(self, spec, cap_cores)
        started.append(spec.guest)

    monkeypatch.setattr(NullDriver, "start", count)
    monkeypatch.setattr(Agent, "stop", lambda self: (stopped.append(self), stop(self))[1])
    fill(disk, (1 << 20) + 60_000)
    drivers = rehearse_on(disk, monkeypatch, Watcher())
    assert [guest for guest in started if "alone" not in guest], "jobs ran"
    assert len(drivers) == len(stopped) == 2
    assert [driver._guests for driver in drivers] == [{}, {}]
    assert not [record for record in caplog.records if record.levelname == "ERROR"], caplog.text

    run = disk / "run"
    assert sorted(path.name for path in run.iterdir()) == [
        "events.jsonl", "jobs.csv", "manifest.json", "points.lp", "summary.json",
    ]  # fmt: skip
    summary = json.loads((run / "summary.json").read_text())
    assert summary["complete"] is False
    assert summary["done"] < len(JOBS)
    with (run / "jobs.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(JOBS)
    journal = read_journal(run / "events.jsonl")
    assert journal[-1]["kind"] == "aborted"
    assert "No space left on device" in journal[-1]["reason"]
    assert len(list(read_lines(run))) > 10


@pytest.mark.parametrize("kind", ["intent", "outcome", "job", "guest"])
def test_the_clean_up_goes_on_whichever_entry_had_no_room(
    disk: Path, monkeypatch: pytest.MonkeyPatch, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk is full when an entry of this kind is written: in a decision, at an operation's end, in a callback."""
    write = AppendFile.write
    done: list[str] = []

    def full(self: AppendFile, lines: bytes) -> None:
        if b'"kind":"%s"' % kind.encode() in lines and b'"trace_s":0.' not in lines and not done:
            done.append(kind)
            fill(disk, 0)
            os.truncate(disk / "run" / ".reserve", 1 << 20)
            write(self, b"x" * (1 << 21))
        write(self, lines)

    monkeypatch.setattr(AppendFile, "write", full)
    drivers = rehearse_on(disk, monkeypatch, Watcher())
    assert done == [kind]
    assert [driver._guests for driver in drivers] == [{}, {}]
    assert not [record for record in caplog.records if record.levelname == "ERROR"], caplog.text


PROGRAM = """
import sys
from testbed.control import session
session.check_disk = lambda *_: None
sys.argv = ["testbed", "run", sys.argv[1], "--dry-run"]
from testbed.cli.main import main
main()
"""


def test_the_command_ends_with_1_and_one_line(disk: Path, tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(
        "job_id,submit_time_s,tasks,cpu_need_frac,mem_req_frac,run_time_s\n1,0,1,1.0,0.4,9000\n"
    )
    text = 'name = "full"\npolicy = "EASY"\ntime_scale = 2\n[workload]\ntrace = "jobs.csv"\n[[nodes]]\nname = "a"\n'
    (tmp_path / "full.toml").write_text(text)
    fill(disk, (1 << 20) + 60_000)
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "full.toml")],
        check=False, capture_output=True, text=True, timeout=HANG_S, env={**os.environ, "TMPDIR": str(disk)},
    )  # fmt: skip
    assert ended.returncode == 1, ended.stdout + ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("testbed: ")]
    assert "cannot write: No space left on device: the run was ended and its guests destroyed" in line
    assert "Traceback" not in ended.stderr + ended.stdout
