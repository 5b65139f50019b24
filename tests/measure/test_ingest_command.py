"""`testbed ingest` as a command: counts, exit codes, kill -9 and Ctrl-C in the middle, and a run that is active."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.live import HANG_S, wait_until
from support.measure.influx_lab import INFLUXD, Adapter, Comparison, Influxd, Recording, compare, write_spool

from testbed.cli.ingest import ingest as command
from testbed.errors import TestbedError
from testbed.measure.shipping_position import read_shipped

pytestmark = pytest.mark.skipif(INFLUXD is None, reason="influxd is not installed (Debian: influxdb)")
COMMAND = [sys.executable, "-m", "testbed", "ingest"]


def begin(run: Path, adapter: Adapter, *more: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("INFLUXDB_V2_")}
    return subprocess.Popen(
        [*COMMAND, str(run), "--url", adapter.url, "--patience-s", f"{HANG_S:g}", *more],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


Ingest = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ingest(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ingest:
    """Return a function that calls the command in this process, and returns exit code, output and errors."""
    for name in ("URL", "ORG", "TOKEN"):
        monkeypatch.delenv(f"INFLUXDB_V2_{name}", raising=False)

    def call(run: Path, adapter: Adapter, *more: str) -> tuple[int, str, str]:
        try:
            code = command.main([str(run), "--url", adapter.url, *more], standalone_mode=False)
        except TestbedError as error:
            return error.exit_code, capsys.readouterr().out, str(error)
        out, err = capsys.readouterr()
        return code, out, err

    return call


def whole(count: int) -> Comparison:
    return Comparison(written=count, found=count, lost=0, altered=0, foreign=0)


def test_a_run_is_shipped_once_and_again_from_the_start(
    tmp_path: Path, lab: tuple[Influxd, Adapter], server: Influxd, ingest: Ingest
) -> None:
    run = tmp_path / "run"
    write_spool(run, 3000)
    code, out, err = ingest(run, lab[1], "--json")
    assert code == 0, err
    (count,) = json.loads(out)
    assert count.pop("elapsed_s") > 0
    assert count == {
        "run": str(run), "points": 3000, "shipped": 3000, "refused": 0, "left": 0, "sent": 3000, "refused_file": None,
        "problem": None,
    }  # fmt: skip
    assert f"{run} to bucket 'testbed' of organization 'lab' at {lab[1].url}" in err.replace("\n", "")
    assert json.loads(ingest(run, lab[1], "--json")[1])[0]["sent"] == 0
    server.query('DROP DATABASE "testbed"')
    server.create("testbed")
    code, out, _ = ingest(run, lab[1], "--from-start")
    assert code == 0
    assert [cell for cell in out.splitlines() if "run" in cell][-1].split()[:6] == [
        "run", "3,000", "3,000", "0", "0", "3,000",
    ]  # fmt: skip
    assert compare(server, "testbed", 3000) == whole(3000)


@pytest.mark.usefixtures("own_time")
def test_exit_codes_tell_what_to_do(
    tmp_path: Path, lab: tuple[Influxd, Adapter], server: Influxd, ingest: Ingest
) -> None:
    run = tmp_path / "run"
    write_spool(run, 100)
    code, _, err = ingest(tmp_path, lab[1])
    assert (code, err) == (2, f"{tmp_path}: no points.lp: expected a run directory")
    code, _, err = ingest(run, lab[1], "--bucket", "gone")
    assert code == 2
    assert "expected bucket 'gone' of organization 'lab' there: create it, or name another" in err
    code, _, err = ingest(run, lab[1], "--url", "nowhere")
    assert code == 2
    assert "--url: url = 'nowhere': expected an address like http://HOST:PORT" in err
    code, out, err = ingest(run, Adapter("http://127.0.0.1:1"), "--patience-s", "0.5")  # not started
    assert code == 1
    assert "trying again for 0.5 s" in err
    assert "100 points not shipped: " in out
    with (run / "points.lp").open("ab") as file:
        file.write(b"no point\n")
    code, out, err = ingest(run, lab[1])
    assert code == 1
    assert f"1 points refused; they are in {run}/refused.lp" in out.replace("\n", "")
    assert "the server refuses points" in err
    assert compare(server, "testbed", 100) == whole(100)


@pytest.mark.slow
def test_ctrl_c_keeps_the_position(
    tmp_path: Path, lab: tuple[Influxd, Adapter], server: Influxd, ingest: Ingest
) -> None:
    run = tmp_path / "run"
    write_spool(run, 12_000)
    lab[1].behave = lambda _number: "pass" if lab[1].written_points < 5000 else "503"
    process = begin(run, lab[1])
    wait_until(lambda: bool(read_shipped(run)), "a first batch")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 130
    assert err.endswith("testbed: interrupted\n")
    lab[1].behave = lambda _number: "pass"
    assert ingest(run, lab[1])[0] == 0
    assert compare(server, "testbed", 12_000) == whole(12_000)


@pytest.mark.slow
def test_killed_again_and_again_in_the_middle_it_loses_nothing(
    tmp_path: Path, lab: tuple[Influxd, Adapter], server: Influxd, ingest: Ingest
) -> None:
    run, count, kills = tmp_path / "run", 40_000, 0
    write_spool(run, count)
    adapter = lab[1]
    hangs = threading.Event()
    while kills < 3:
        wanted = adapter.written_points + 5000 * (1 + kills % 2)

        def behave(_number: int, wanted: int = wanted, how: str = ("hang", "hang after")[kills % 2]) -> str:
            if adapter.written_points < wanted:
                return "pass"
            hangs.set()
            return how

        hangs.clear()
        adapter.behave = behave
        process = begin(run, adapter)
        assert hangs.wait(HANG_S)
        if kills % 2:
            wait_until(lambda: adapter.written_points > wanted, "points without an answer")  # noqa: B023  # at once
        process.kill()
        process.communicate(timeout=HANG_S)
        assert process.returncode == -signal.SIGKILL
        kills += 1
    assert next(iter(read_shipped(run).values())).read_points < count
    adapter.behave = lambda _number: "pass"
    assert ingest(run, adapter)[0] == 0
    assert adapter.written_points > count  # some more than once
    assert compare(server, "testbed", count) == whole(count)


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_it_ships_beside_the_recorder_while_the_run_goes_on(
    tmp_path: Path, lab: tuple[Influxd, Adapter], server: Influxd, ingest: Ingest
) -> None:
    run = Recording(tmp_path / "run", lab[1].url, rate=1000)
    for _ in range(10):
        before = run.count
        wait_until(lambda: run.count > before, "points")  # noqa: B023  # waited for at once
        code, _, err = ingest(tmp_path / "run", lab[1])
        assert code == 0, err
    assert run.end() == {}
    assert compare(server, "testbed", run.count) == whole(run.count)
    shipped = next(iter(read_shipped(tmp_path / "run").values()))
    assert shipped.read_points == run.count
