"""The guests' programs end with the checksums of their Python twins, on this machine."""

from __future__ import annotations

import os
import re
import socket
import struct
import subprocess
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from support.guests.twins import expected, task
from support.live import HANG_S

from node_agent.drivers.procs.environment import BIN
from node_agent.guests import wire
from node_agent.programs.ballast import Ballast
from node_agent.programs.segments import segments_of
from node_agent.programs.task import TOPOLOGIES
from testbed.testing.accuracy import Window

RESERVE_MIB = 28
NAMES = ("ready", "done", "error")
PEER = struct.Struct("3i")


class SilenceError(Exception):
    """The other end has closed the connection without a message."""


class Side:
    """The agent's end of one program's channel."""

    def __init__(self, folder: Path, one, available_mib: int = 0, **changes) -> None:
        folder.mkdir()
        fields = {**asdict(one), **changes}
        (folder / "task").write_text("".join(f"{name}={value}\n" for name, value in fields.items()))
        (folder / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable:  {available_mib * 1024} kB\n")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(folder / "agent.sock"))
        self.listener.listen()
        self.listener.settimeout(HANG_S)
        self.folder = folder
        self.environment = {
            "DFRS_RUN": str(folder), "DFRS_MEMINFO": str(folder / "meminfo"),
            "LD_LIBRARY_PATH": str(BIN.parent / "lib"),
        }  # fmt: skip
        self.end: socket.socket | None = None

    def last_words(self) -> wire.Frame | None:
        """Return the last message of a program that has ended, None if there was none."""
        try:
            return self.hear()
        except SilenceError:
            return None

    def hear(self) -> wire.Frame:
        if self.end is None:
            self.end = self.listener.accept()[0]
            self.end.settimeout(HANG_S)
        said = self.end.recv(65536).decode()
        if not said:
            raise SilenceError
        kind, *parts = said.split(" ")
        pairs = [part.partition("=") for part in parts]
        assert kind in NAMES
        return wire.Frame(kind, {name: (value,) for name, _, value in pairs})

    def go(self) -> None:
        assert self.hear().kind == "ready"
        peer = self.end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
        self.segments = segments_of(PEER.unpack(peer)[0])
        self.end.send(b"go")

    def close(self) -> None:
        self.listener.close()
        if self.end is not None:
            self.end.close()


def _alone(programs, folder, one, program="eatcpu") -> wire.Frame:
    side = Side(folder, one)
    process = subprocess.Popen([programs / program], env=side.environment)
    side.go()
    done = side.hear()
    assert process.wait() == 0
    side.close()
    units, steps, longest_ns, compute_ns, comm_ns = struct.unpack("<5Q", (folder / "progress").read_bytes())
    assert (units, steps) == (one.work_units, one.iterations)
    assert longest_ns == 0  # `done` has reported and reset it
    assert compute_ns / 1e9 == pytest.approx(done.number("compute_s"), abs=2e-6)
    assert comm_ns == 0
    return done


def _check_steps(done: wire.Frame, one) -> None:
    """Reports of iterations agree with the Python twin: the same number, and a plausible longest iteration."""
    whole_s = done.number("compute_s") + done.number("comm_s")
    assert done.count("steps") == one.iterations
    assert whole_s / one.iterations - 2e-6 <= done.number("longest_s") <= whole_s + 2e-6


@pytest.mark.parametrize(("profile", "pace_ns"), [("0.5", 0), ("1,0.25@0.3333,0.0001@0.9", 10**6), ("1,0.9@0.0001", 1)])
def test_a_guest_with_a_profile_and_a_pace_computes_what_its_twin_does(programs, short_path, profile, pace_ns):
    one = task(work_units=1000, units_per_iteration=37, profile=profile, pace_ns=pace_ns)
    done = _alone(programs, short_path / "a", one, "eatcpu")
    assert (done.text("checksum"), done.count("messages")) == expected(one)
    assert done.count("units") == 1000


def test_a_guest_with_a_pace_takes_its_time(programs, short_path):
    one = task(work_units=20, units_per_iteration=1, pace_ns=50_000_000)
    begin_s = time.monotonic()
    _alone(programs, short_path / "a", one, "eatcpu")
    assert time.monotonic() - begin_s >= 0.95  # the rest after the last iteration is part of its time, up to rounding


@pytest.mark.parametrize("profile", ["", "2", "1,0.5", "1,0.5@0.5,1@0.4", "1,0@0.5", "1x", "1,0.5@1"])
def test_a_profile_that_is_none_is_refused(programs, short_path, profile):
    side = Side(short_path / "a", task(), profile=profile)
    process = subprocess.Popen([programs / "eatcpu"], env=side.environment)
    said = side.hear()
    assert process.wait() != 0
    side.close()
    assert said.kind == "error"
    assert said.text("message").startswith("profile%20%3D%20")


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("program", ["eatcpu", "patterns"])
def test_a_single_guest_computes_what_its_twin_does(programs, short_path, program, workers):
    one = task(name=program, workers=workers, seed=2**63 + 5, work_units=31)
    done = _alone(programs, short_path / "a", one, program)
    assert (done.text("checksum"), done.count("messages")) == expected(one)
    assert done.count("units") == 31
    assert done.number("compute_s") > 0
    assert done.number("comm_s") == 0
    _check_steps(done, one)


def _together(programs, folder, tasks, **second) -> list[Side]:
    sides = [Side(folder / f"r{one.rank}", one, **(second if one.rank == 1 else {})) for one in tasks]
    argv = [str(BIN / "mpiexec")]
    for number, side in enumerate(sides):
        argv += [":"] if number else []
        argv += ["-n", "1", *(word for pair in side.environment.items() for word in ("-env", *pair))]
        argv += [str(programs / "patterns")]
    # MPI prints a long reason for the abort
    sides[0].process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for side in sides:
        side.go()
    return sides


CASES = [(topology, ranks, "uniform", 100) for topology in TOPOLOGIES for ranks in (2, 4)]
CASES += [("torus", 3, "1/i", 1), ("tree", 3, "1/i", 8), ("ring", 4, "1/i", 70001), ("all-to-all", 3, "uniform", 17)]
CASES += [("ring", 3, "drift:1", 64), ("linear", 4, "drift:2", 64)]


@pytest.mark.parametrize(("topology", "ranks", "imbalance", "message_bytes"), CASES)
def test_ranks_compute_what_their_twins_do(programs, short_path, topology, ranks, imbalance, message_bytes):
    tasks = [
        task(name="patterns", rank=rank, ranks=ranks, topology=topology, imbalance=imbalance,
             message_bytes=message_bytes, workers=1 + rank % 2, units_per_iteration=9)
        for rank in range(ranks)
    ]  # fmt: skip
    sides = _together(programs, short_path, tasks)
    for side, one in zip(sides, tasks, strict=True):
        done = side.hear()
        assert (done.kind, done.text("checksum"), done.count("messages")) == ("done", *expected(one))
        _check_steps(done, one)
        assert done.number("comm_s") > 0
        side.close()
    assert sides[0].process.wait(HANG_S) == 0


def test_a_message_that_is_not_what_was_sent_is_an_error(programs, short_path):
    tasks = [task(name="patterns", rank=rank, ranks=2) for rank in range(2)]
    sides = _together(programs, short_path, tasks, seed=12)
    assert sides[0].process.wait(HANG_S) != 0
    for path in set().union(*(side.segments for side in sides)):
        path.unlink(missing_ok=True)  # a rank that aborts does not remove its shared memory
    said = [side.last_words() for side in sides]
    for side in sides:
        side.close()
    told = [frame for frame in said if frame is not None]  # the rank that detects it first ends both
    assert told
    for frame in told:
        assert frame.kind == "error"
        assert re.fullmatch(
            r"message%20from%20rank%20[01]%20to%20[01],%20iteration%200:%20byte%20\d+%20of%20100%20.*",
            frame.text("message"),
        )


@pytest.mark.parametrize("touched_frac", [1.0, 0.62, 0.01])
def test_ballast_is_the_twins_to_the_byte_and_leaves_the_reserve(programs, short_path, touched_frac):
    one = task(seed=5, job=3, task=2, touched_frac=touched_frac)
    side = Side(short_path / "a", one, available_mib=RESERVE_MIB + 3)
    process = subprocess.Popen([programs / "eatcpu"], env=side.environment)
    assert side.hear().count("ballast_mib") == 3
    ballast = Ballast(3, touched_frac)
    ballast.fill(one)
    assert len(ballast.bytes) == {1.0: 12, 0.62: 7, 0.01: 1}[touched_frac] << 18
    begin = bytes(ballast.bytes[:64])
    found = b""
    with Path(f"/proc/{process.pid}/mem").open("rb") as memory:
        for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
            low, high = (int(text, 16) for text in line.split()[0].split("-"))
            if line.split()[1] == "rw-p" and len(line.split()) == 5 and high - low >= 3 << 20:
                memory.seek(low)
                content = memory.read(high - low)
                if begin in content:
                    found = content[content.index(begin) :][: 3 << 20]
    assert found == bytes(ballast.bytes).ljust(3 << 20, b"\0")
    ballast.free()
    process.kill()
    process.wait()
    side.close()


def test_a_task_of_an_earlier_agent_touches_all_of_its_ballast(programs, short_path):
    side = Side(short_path / "a", task(), available_mib=RESERVE_MIB + 1)
    lines = (side.folder / "task").read_text().splitlines()
    (side.folder / "task").write_text("\n".join(line for line in lines if not line.startswith("touched_frac")))
    process = subprocess.Popen([programs / "eatcpu"], env=side.environment)
    side.go()
    assert side.hear().kind == "done"
    assert process.wait() == 0
    side.close()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"topology": "star"}, "topology%20%3D%20star"),
        ({"work_units": 0}, "work_units%20%3D%200:%20expected%20at%20least%201"),
        ({"touched_frac": 0}, "touched_frac%20%3D%200:%20expected%20more%20than%200"),
        ({"touched_frac": 1.5}, "at%20most%201"),
        ({"seed": -1}, "seed%20%3D%20-1:%20expected%20a%20count"),
        ({"name": "patterns"}, "name%20%3D%20patterns:%20expected%20eatcpu"),
        ({"ranks": 2}, "ranks%20%3D%202:%20expected%201"),
    ],
)
def test_a_task_that_makes_no_sense_is_told_why(programs, short_path, changes, complaint):
    side = Side(short_path / "a", task(), **changes)
    process = subprocess.Popen([programs / "eatcpu"], env=side.environment, stderr=subprocess.DEVNULL)
    said = side.hear()
    assert said.kind == "error"
    assert complaint in said.text("message")
    assert process.wait() == 1
    side.close()


def test_calibration_prints_the_rate_at_which_tasks_are_done(programs, short_path, accuracy):
    window = Window()
    out = subprocess.run([programs / "eatcpu", "calibrate", "0.2"], capture_output=True, text=True, check=True).stdout
    rate = float(re.fullmatch(r"units_per_core_s=(\d+\.\d)\n", out)[1])
    one = task(work_units=max(1, round(rate)), units_per_iteration=50)
    side = Side(short_path / "a", one)
    process = subprocess.Popen([programs / "eatcpu"], env=side.environment)
    side.go()
    assert side.hear().kind == "done"
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    side.close()
    # both are CPU times, which other load on the machine hardly changes
    ratio = rate / (one.work_units / (usage.ru_utime + usage.ru_stime))
    assert 0.25 < ratio < 4
    accuracy.check("calibrated rate over that of a task", ratio, 0.75, 1.33, window)
