"""`testbed campaign` as users call it: killed, interrupted, on processes and on a Dask cluster."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.campaign.campaign_files import ROOT, SMALL, command, start, write
from support.live import HANG_S, wait_until

TWINS = {"PYTHONPATH": str(Path(__file__).parent / "twins_only")}
MANY = SMALL.replace('"1..3"', '"1..20"').replace("jobs = 30", "jobs = 150")
UNITS, ROWS = 20 * 2 + 2, (20 * 2 + 2) * 3


def until(condition, process=None):
    def there():
        assert process is None or process.poll() is None, process.communicate()
        return condition()

    wait_until(there, "the expected state")
    return condition()


def gate(folder, out, least):
    """Let units wait at their beginning once `least` are done; returns the gate file, and the environment."""
    path = folder / "gate"
    (folder / "new").write_text(f"{least} {out / 'done'}")
    (folder / "new").replace(path)
    return path, {**TWINS, "DFRS_TEST_GATE": str(path)}


def done(out):
    return sorted((out / "done").glob("*.json"))


def figures(out):
    """The rows of results.csv without wall times."""
    with (out / "results.csv").open() as file:
        return [
            {k: v for k, v in row.items() if not k.startswith(("decide", "simulation"))} for row in csv.DictReader(file)
        ]


def end(*processes):
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An undisturbed campaign."""
    folder = tmp_path_factory.mktemp("whole")
    code, _out, err = command(write(folder, MANY), "--out", folder / "out", "--jobs", 1, **TWINS)
    assert code == 0, err
    return figures(folder / "out")


def test_a_quick_look_then_the_rest_then_the_report_alone(tmp_path):
    path, out = write(tmp_path), tmp_path / "out"
    code, text, err = command(path, "--out", out, "--jobs", 2, "--limit", 1, **TWINS)
    assert (code, len(done(out))) == (0, 3), err
    assert "[RR] Table 2" in text
    assert "15 of 40 simulations and bounds done" in err
    before = {file: file.stat().st_mtime_ns for file in done(out)}
    code, _text, err = command(path, "--out", out, "--jobs", 1, **TWINS)
    assert (code, len(done(out))) == (0, 8), err
    assert "40 of 40" in err
    assert {file: file.stat().st_mtime_ns for file in before} == before
    drawn = {file: file.read_bytes() for room in ("tables", "figures") for file in (out / room).iterdir()}
    for file in drawn:
        file.unlink()
    code, _text, err = command(path, "--out", out, "--report-only", **TWINS)
    assert code == 0, err
    assert {file: file.read_bytes() for file in drawn} == drawn


def test_mistakes_and_failures_have_their_exit_codes(tmp_path):
    code, _out, err = command(tmp_path / "none.toml")
    assert (code, "no such campaign file" in err) == (2, True)
    code, _out, err = command(write(tmp_path, SMALL.replace("nodes = 16", "nods = 16")))
    assert (code, "unknown key traces.0.nods; nearest: nodes" in err) == (2, True)
    (tmp_path / "wide.csv").write_text(
        "job_id,submit_time_s,tasks,cpu_need_frac,mem_req_frac,run_time_s\n1,0,9,1.0,0.4,300\n"
    )
    text = 'name="x"\npolicies=["FCFS"]\n[[traces]]\nname="t"\nkind="table"\nnodes=1\nfiles="*.csv"\n'
    path = write(tmp_path, text)
    for retried in ([], ["--retry-failed"]):
        code, _out, err = command(path, "--out", tmp_path / "out", "--jobs", 1, *retried, **TWINS)
        assert code == 1
        assert "t/wide.csv, FCFS: job 1 can never run on 1 nodes under FCFS" in err
        assert "1 of 2 simulations and bounds done, 1 failed" in err
    code, _out, err = command(path, "--out", tmp_path / "other", "--report-only")
    assert (code, "nothing to report" in err, (tmp_path / "other").exists()) == (2, True, False)
    code, out, err = command("--list")
    assert (code, "rr7659-unscaled" in out) == (0, True), err


@pytest.mark.slow
def test_killed_and_started_again_it_loses_nothing_and_does_nothing_twice(tmp_path, whole):
    path, out = write(tmp_path, MANY), tmp_path / "out"
    for ended in (2, 12):
        _closed, settings = gate(tmp_path, out, ended)
        process = start(path, "--out", out, "--jobs", 2, **settings)
        until(lambda ended=ended: len(done(out)) >= ended, process)
        workers = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.communicate()
        assert len(workers) >= 2
        _gone, alive = psutil.wait_procs(workers, timeout=HANG_S)  # they end without their parent
        assert not alive
        kept = {file: file.stat().st_mtime_ns for file in done(out)}
    code, _out, err = command(path, "--out", out, "--jobs", 2, **TWINS)
    assert code == 0, err
    assert "were in progress when the last process ended" in err
    assert {file: file.stat().st_mtime_ns for file in kept} == kept
    assert len(done(out)) == UNITS
    assert len(figures(out)) == ROWS
    assert figures(out) == whole


@pytest.mark.slow
def test_a_worker_that_dies_costs_nothing_but_time(tmp_path, whole):
    path, out = write(tmp_path, MANY), tmp_path / "out"
    closed, settings = gate(tmp_path, out, 1)
    process = start(path, "--out", out, "--jobs", 2, **settings)
    try:
        until(lambda: done(out), process)
        worker = next(
            child
            for child in psutil.Process(process.pid).children()
            if "resource_tracker" not in " ".join(child.cmdline())
        )
        worker.kill()
        assert len(done(out)) < UNITS
        closed.unlink()
        _out, err = process.communicate(timeout=HANG_S)
    finally:
        end(process)
    assert process.returncode == 0, err
    assert figures(out) == whole


@pytest.mark.slow
def test_interrupted_it_says_how_to_go_on(tmp_path):
    path, out = write(tmp_path, MANY), tmp_path / "out"
    _closed, settings = gate(tmp_path, out, 1)
    process = start(path, "--out", out, "--jobs", 2, **settings)
    try:
        until(lambda: done(out), process)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _out, err = process.communicate(timeout=HANG_S)
    finally:
        end(process)
    assert process.returncode == 130, err
    assert "the same command continues" in err
    assert "Traceback" not in err
    assert 0 < len(done(out)) < UNITS


@pytest.mark.slow
@pytest.mark.long
def test_on_a_dask_cluster_whose_worker_is_killed(tmp_path, whole):
    path, out, address = write(tmp_path, MANY), tmp_path / "out", tmp_path / "scheduler.json"
    closed, settings = gate(tmp_path, out, 2)

    def dask(role, *arguments):
        return subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.dask_{role}", *map(str, arguments), "--no-dashboard"],
            cwd=ROOT, env={**os.environ, **settings}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    scheduler = dask("scheduler", "--host", "127.0.0.1", "--port", 0, "--scheduler-file", address)
    workers = [
        dask("worker", "--scheduler-file", address, "--nthreads", 1, "--no-nanny", "--local-directory", tmp_path / name)
        for name in ("one", "two")
    ]
    campaign = None
    try:
        until(address.exists, scheduler)
        import json

        where = until(lambda: address.read_text() and json.loads(address.read_text())["address"])
        campaign = start(path, "--out", out, "--scheduler", where, **TWINS)
        until(lambda: len(done(out)) >= 2, campaign)
        workers[0].kill()
        assert len(done(out)) < UNITS
        closed.unlink()
        _out, err = campaign.communicate(timeout=HANG_S)
        assert campaign.returncode == 0, err
        assert figures(out) == whole
    finally:
        end(*[process for process in (campaign, *workers, scheduler) if process is not None])
    code, _out, err = command(path, "--out", tmp_path / "none", "--scheduler", where, **TWINS)
    assert (code, "no Dask scheduler answers there" in err) == (2, True)
