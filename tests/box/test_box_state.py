"""The state of a lab outlives its maker: state files, and processes that are recognised again."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.live import HANG_S

from testbed.errors import RunError, UserError
from testbed.lab.box import processes
from testbed.lab.box import spec as spec_module
from testbed.lab.box import state as state_module
from testbed.lab.box.processes import (
    ProcessId,
    alive,
    end,
    identify,
    mark,
    marked,
    spawn,
    wait_until,
    with_housemates,
)
from testbed.lab.box.spec import BoxSpec, NodeSpec
from testbed.lab.box.state import BoxState, Journal, Thing, check_distinct, find, labs, only_command

NODE = NodeSpec("lab", "a", 0.8, 512, "libvirt", "10.77.255.1/16")
STATE = BoxState(BoxSpec("lab", (NODE,), "auto", None, 0.1), "/scenarios/x.toml", 18830)
NAMES = st.from_regex(r"[a-z0-9][a-z0-9-]{0,20}", fullmatch=True)


@pytest.fixture
def root(tmp_path, monkeypatch):
    for module in (spec_module, state_module):
        monkeypatch.setattr(module, "RUN_ROOT", tmp_path)
    return tmp_path


@given(
    st.builds(
        BoxState,
        spec=st.builds(
            BoxSpec,
            lab=NAMES,
            nodes=st.lists(
                st.builds(
                    NodeSpec, NAMES, NAMES, st.floats(0.1, 64), st.integers(1, 1 << 20), NAMES, st.just("10.0.255.1/8")
                ),
                max_size=4,
            ).map(tuple),
            broker=st.sampled_from(["auto", "embedded", "mosquitto"]),
            link_mbit_per_s=st.none() | st.floats(0.1, 1e5),
            emulator_headroom_frac=st.floats(0, 1),
        ),
        scenario=st.text(max_size=30),
        broker_port=st.integers(1, 65535),
        phase=st.sampled_from(["making", "up", "ending"]),
        things=st.dictionaries(
            st.text(min_size=1, max_size=20),
            st.builds(Thing, st.booleans(), st.none() | st.builds(ProcessId, st.integers(1, 1 << 22), st.integers(0))),
            max_size=4,
        ),
    )
)
def test_a_state_reads_back_as_it_was_written(state):
    assert msgspec.json.decode(msgspec.json.encode(state), type=BoxState) == state


def test_every_change_is_on_disk_before_the_call_returns_and_only_for_its_owner(root):
    journal = Journal(STATE)
    journal.intend("libvirtd dfrs-lab-a")
    assert find("lab").things == {"libvirtd dfrs-lab-a": Thing(made=False)}
    journal.started("libvirtd dfrs-lab-a", ProcessId(7, 8))
    journal.made("libvirtd dfrs-lab-a")
    journal.phase("up")
    found = find("lab")
    assert found.things == {"libvirtd dfrs-lab-a": Thing(made=True, process=ProcessId(7, 8))}
    assert found == journal.state
    assert found.phase == "up"
    path = root / "lab" / "lab.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == ["lab.json"]
    journal.intend("libvirtd dfrs-lab-a")  # a restart: the old process stays known until the new one is known
    assert find("lab").things["libvirtd dfrs-lab-a"] == Thing(made=False, process=ProcessId(7, 8))


def test_no_lab_a_broken_state_and_a_missing_broker_are_told_apart(root):
    assert find("lab") is None
    assert labs() == []
    (root / "lab").mkdir()
    (root / "lab" / "lab.json").write_text('{"spec": 3}')
    assert labs() == ["lab"]
    with pytest.raises(RunError, match=r"lab\.json: not the state of a lab .*testbed lab down lab"):
        find("lab")
    with pytest.raises(RunError, match="its broker has no address"):
        STATE.broker_url  # noqa: B018  # the property is what is tested


@pytest.mark.parametrize(("other", "clear"), [("lab-b", False), ("la", True), ("lab2", True), ("lab", True)])
def test_labs_whose_parts_could_not_be_told_apart_are_refused(root, other, clear):
    (root / other).mkdir()
    if clear:
        check_distinct("lab")
    else:
        for name in ("lab", "lab-b-c"):
            with pytest.raises(UserError, match=f"lab {name}: .* lab {other}"):
                check_distinct(name)


def test_one_command_at_a_time(root):
    with only_command(), pytest.raises(UserError, match="another `testbed lab up`"), only_command(wait_s=0.1):
        pytest.fail("two commands at once")
    with only_command():
        assert root.is_dir()


READS_TWICE = """
import pathlib, sys, time
print(input())
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
input()
"""


def test_a_process_is_known_by_its_start_so_that_a_reused_id_is_never_ended(tmp_path):
    argv = [sys.executable, "-c", READS_TWICE, str(tmp_path / "go")]
    process = spawn(argv, "xstate/a/agent", tmp_path / "log", "hello\n")
    try:
        (tmp_path / "go").touch()
        # its standard input is closed after the first line, so it ends with an error, which is in its log
        assert wait_until(lambda: not alive(process), HANG_S)
        assert identify(process.pid) is None
        assert (tmp_path / "log").read_text().startswith("hello\n")
        assert "EOFError" in (tmp_path / "log").read_text()
    finally:
        os.waitpid(process.pid, 0)
    sleeper = spawn(["sleep", "infinity"], "xstate/a/agent", tmp_path / "log")
    try:
        reused = ProcessId(sleeper.pid, sleeper.start_ticks - 1)
        assert alive(sleeper)
        assert not alive(reused)
        end([reused], grace_s=HANG_S)
        assert alive(sleeper)
        end([sleeper], grace_s=HANG_S)
        assert not alive(sleeper)  # although its parent has not waited for it yet
    finally:
        os.kill(sleeper.pid, signal.SIGKILL)
        os.waitpid(sleeper.pid, 0)


def test_processes_are_found_by_lab_node_and_role_when_nobody_wrote_them_down(tmp_path):
    roles = [("xmark", "a", "agent"), ("xmark", "a", "libvirtd"), ("xmark", "b", "agent"), ("xmark-b", "a", "agent")]
    started = [spawn(["sleep", "infinity"], mark(*role), tmp_path / "log") for role in roles]
    try:
        # between fork and exec a child has its parent's environment
        assert wait_until(lambda: len(marked("xmark")) == 3 and len(marked("xmark-b")) == 1, HANG_S)
        assert set(marked("xmark")) == set(started[:3])
        assert set(marked("xmark", "a")) == set(started[:2])
        assert marked("xmark", "b", "agent") == [started[2]]
        assert marked("xmar") == []
    finally:
        end(started, grace_s=HANG_S)
        for process in started:
            os.waitpid(process.pid, 0)
    assert marked("xmark") == []


HOUSEMATES = """
import json, sys
from testbed.lab.box import processes
namespace = processes._mount_namespace
processes._mount_namespace = lambda pid: None if pid == "1" else namespace(pid)  # init may hide it, also from root
found = processes.with_housemates(processes.marked(sys.argv[1]))
print(json.dumps([process.pid for process in found]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes mount namespaces")
def test_processes_of_the_machine_are_no_housemates_of_a_broker(tmp_path):
    broker = spawn(["sleep", "infinity"], mark("xhouse", "-", "broker"), tmp_path / "log")
    try:
        told = subprocess.run(
            ["unshare", "--mount", sys.executable, "-c", HOUSEMATES, "xhouse"],
            capture_output=True, text=True, check=True, timeout=HANG_S,
        )  # fmt: skip
        assert json.loads(told.stdout) == [broker.pid]  # and no other process, which would be killed
    finally:
        end([broker], grace_s=HANG_S)
        os.waitpid(broker.pid, 0)


FIRST_THREAD_ENDS = """
import ctypes, fcntl, sys, threading
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
threading.Thread(target=threading.Event().wait).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_lives_until_its_last_thread_has_ended_and_its_locks_are_free(tmp_path):
    # as a killed process whose first thread ends at once while another thread waits for the disk
    argv = [sys.executable, "-c", FIRST_THREAD_ENDS, str(tmp_path / "locked")]
    process = spawn(argv, mark("xhalf", "a", "libvirtd"), tmp_path / "log")
    try:
        status = Path(f"/proc/{process.pid}/stat")
        assert wait_until(lambda: ") Z " in status.read_text(), HANG_S), (tmp_path / "log").read_text()
        assert alive(process)
        assert marked("xhalf", "a", "libvirtd") == [process]
        assert with_housemates([process]) == [process]
        with (tmp_path / "locked").open("w") as file:
            with pytest.raises(BlockingIOError):
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            end([process], grace_s=0)
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert not alive(process)
        assert marked("xhalf") == []
    finally:
        os.kill(process.pid, signal.SIGKILL)
        os.waitpid(process.pid, 0)


def test_a_process_that_does_not_end_is_told_with_what_it_waits_for(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_KILLED_WITHIN_S", 0.1)
    monkeypatch.setattr(os, "kill", lambda *_: None)  # as when it waits for a disk
    sleeper = spawn(["sleep", "infinity"], "xstuck/a/agent", tmp_path / "log")
    try:
        with pytest.raises(RunError, match=rf"even SIGKILL does not end process {sleeper.pid}( \(in \w+\))?$"):
            end([sleeper], grace_s=0)
    finally:
        monkeypatch.undo()
        os.kill(sleeper.pid, signal.SIGKILL)
        os.waitpid(sleeper.pid, 0)


def test_what_cannot_be_started_is_told(tmp_path):
    with pytest.raises(RunError, match="/no/such/program: cannot be started: No such file"):
        spawn(["/no/such/program"], "x/a/agent", Path(tmp_path / "log"))
