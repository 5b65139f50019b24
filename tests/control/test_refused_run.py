"""A refused run prints the reason as one line on standard error only, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import psutil
import pytest
from support.control.rehearsal import BEST, Watcher, five_jobs, scenario

from testbed.bus.mosquitto import find_mosquitto, mosquitto_broker
from testbed.control.admission import check_disk
from testbed.control.session import run_session
from testbed.errors import InputError, UserError
from testbed.lab import local_agents as agents_module
from testbed.lab.bring_up import dry_lab
from testbed.lab.local_agents import check_drivers, local_agents
from testbed.lab.virtual_time import run_in_virtual_time
from testbed.measure.rundir import RunDirectory
from testbed.scheduling.policies.catalogue import parse


def test_a_refused_run_removes_the_folders_that_were_made_for_it(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    chosen, watcher = scenario(programs={"serial": "eatcpv"}), Watcher()
    path = tmp_path / "there" / "new" / "runs" / "one"
    with pytest.raises(UserError, match=r"programs\.serial = 'eatcpv'"):
        run_in_virtual_time(run_session(chosen, parse(BEST, 600), five_jobs(), path, dry_lab, watcher))
    assert list((tmp_path / "there").iterdir()) == []
    assert watcher.lines == []


def test_folders_that_hold_something_else_stay(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "runs" / "one", {})
    directory.open()
    (tmp_path / "runs" / "note").touch()
    directory.discard()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["note"]


def test_a_run_directory_that_cannot_be_made_leaves_none_above_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot create the run directory: File name too long"):
        RunDirectory(tmp_path / "runs" / "deep" / ("x" * 300), {}).open()
    assert list(tmp_path.iterdir()) == []


def test_the_headline_comes_when_the_nodes_are_there(tmp_path: Path) -> None:
    watcher = Watcher()
    chosen = scenario()
    run_in_virtual_time(run_session(chosen, parse(BEST, 600), five_jobs(), tmp_path / "run", dry_lab, watcher))
    assert watcher.lines[0].startswith("0.0 dry run of 5 jobs of rehearsal on 2 nodes under GreedyPM")
    assert watcher.lines[1].startswith("0.0 2 nodes are online")


def test_an_unknown_driver_is_told_before_anything_starts() -> None:
    check_drivers(scenario())
    check_drivers(scenario(nodes=[{"name": "a", "driver": "elsewhere", "spawn": False}]))
    with pytest.raises(InputError, match=r"node b: nodes\.1\.driver = 'proces': expected one of .*nearest: process"):
        check_drivers(scenario(nodes=[{"name": "a"}, {"name": "b", "driver": "proces"}]))


def test_memory_that_the_machine_has_not_is_blamed_on_the_node(tmp_path: Path) -> None:
    nodes = [{"name": "a", "memory_mib": 1}, {"name": "b", "memory_mib": 9_000_000}]
    with pytest.raises(UserError, match=r"^nodes\.1\.memory_mib = 9000000: node b is on this machine, which has"):
        check_disk(tmp_path, scenario(nodes=nodes))
    check_disk(tmp_path, scenario(nodes=[{**node, "spawn": False} for node in nodes]))


def test_a_disk_that_is_too_small_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 1 << 20

    monkeypatch.setattr("testbed.control.admission.shutil.disk_usage", lambda _path: Usage())
    with pytest.raises(
        UserError, match=r"1 MiB free on its disk: expected at least 4000 MiB .* memory_mib of all nodes"
    ):
        check_disk(tmp_path, scenario())


def test_an_agent_that_cannot_be_started_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python3"
    program.touch(mode=0o600)  # not executable, even for root
    monkeypatch.setattr(agents_module, "module_argv", lambda *words: [str(program), *words])

    async def main() -> None:
        async with local_agents(scenario().nodes, "local", "mqtt://127.0.0.1:1", tmp_path, folder=tmp_path):
            pytest.fail("the run was started")

    with pytest.raises(UserError, match=r"^node node-0: its agent cannot be started: .*/python3: Permission denied"):
        asyncio.run(main())


def test_a_broker_of_ours_is_out_of_reach_of_the_terminal(tmp_path: Path) -> None:
    program = find_mosquitto()
    if program is None:
        pytest.skip("Mosquitto is not installed: scripts/debian-packages test installs it")

    async def main() -> None:
        before = set(psutil.Process().children())  # processes of other tests
        async with mosquitto_broker(program, tmp_path / "broker"):
            (child,) = set(psutil.Process().children()) - before
            assert os.getpgid(child.pid) != os.getpgid(0)

    asyncio.run(main())
