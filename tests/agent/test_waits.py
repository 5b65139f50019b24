"""The layer below MPI that records which rank waits for which, under a program that does not know the layer."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.live import HANG_S

from node_agent.drivers.procs import waits
from node_agent.drivers.procs.environment import BIN
from node_agent.drivers.procs.waits import WaitsLayer
from node_agent.programs.waits import VARIABLE, Waits

RANKS = 3
# Each rank receives from its predecessor, in several ways. The predecessor sends after 50 ms of CPU time. MPI
# busy-waits, so the test does not depend on the machine's speed.
PROGRAM = """
import os, sys, time
import mpi4py
mpi4py.rc.thread_level = sys.argv[1]
from mpi4py import MPI
comm = MPI.COMM_WORLD
back = comm.Split(0, comm.size - comm.rank)  # the same ranks in the other order
waiting = os.path.join(os.environ["FOLDER"], "%s-%d")

def ticks(pid):
    with open(f"/proc/{pid}/stat") as file:
        return sum(map(int, file.read().rpartition(")")[2].split()[11:13]))

def wait_for(way, rank):
    while not os.path.exists(waiting % (way, rank)):
        time.sleep(0.001)
    pid, begun = open(waiting % (way, rank)).read().split()
    while ticks(pid) < int(begun) + 0.05 * os.sysconf("SC_CLK_TCK"):
        time.sleep(0.001)

def say(way):
    path = waiting % (way, comm.rank)
    if not os.path.exists(path):
        with open(path + ".new", "w") as file:
            file.write(f"{os.getpid()} {ticks(os.getpid())}")
        os.rename(path + ".new", path)

def receive(way, buffer, tag):
    source = comm.rank - 1
    if way == "recv":
        say(way)
        comm.Recv(buffer, source, tag)
    elif way == "any-source":
        say(way)
        comm.Recv(buffer, MPI.ANY_SOURCE, tag)
    elif way == "other-communicator":
        say(way)
        back.Recv(buffer, back.size - 1 - source, tag)
    elif way == "wait":
        request = comm.Irecv(buffer, source, tag)
        say(way)
        request.Wait()
    else:
        never = comm.Irecv(bytearray(1), source, 999)
        request = comm.Irecv(buffer, source, tag)
        while not (MPI.Request.Testany([request])[1] if way == "testany" else request.Test()):
            say(way)
        never.Cancel()
        never.Wait()

for tag, way in enumerate(("recv", "any-source", "other-communicator", "wait", "test", "testany")):
    if comm.rank:
        receive(way, bytearray(1), tag)
    if comm.rank < comm.size - 1:
        wait_for(way, comm.rank + 1)
        (back if way == "other-communicator" else comm).Send(
            bytearray(1), back.size - 1 - (comm.rank + 1) if way == "other-communicator" else comm.rank + 1, tag
        )
"""


def counts(folder: Path, rank: int) -> list[float]:
    path = folder / f"g{rank}.waits"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(path))
        return Waits().tell()["waits_s"]


@pytest.mark.parametrize("thread_level", ["single", "multiple"])
def test_each_rank_waits_for_the_one_before_it(tmp_path: Path, thread_level: str) -> None:
    async def environments() -> list[dict[str, str]]:
        layer = WaitsLayer(tmp_path)
        return [await layer.environment(f"g{rank}") for rank in range(RANKS)]

    argv = [str(BIN / "mpiexec")]
    for rank, variables in enumerate(asyncio.run(environments())):
        assert variables.keys() == {"LD_PRELOAD", VARIABLE}
        argv += [] if rank == 0 else [":"]
        argv += ["-n", "1", "env", *(f"{name}={value}" for name, value in variables.items())]
        argv += [sys.executable, "-c", PROGRAM, thread_level]
    subprocess.run(argv, check=True, env={**os.environ, "FOLDER": str(tmp_path)}, timeout=HANG_S)
    assert counts(tmp_path, 0) == [0, 0, 0]
    for rank in range(1, RANKS):
        found = counts(tmp_path, rank)
        assert found[rank - 1] > 6 * 0.03, "six ways to wait"
        assert sum(found) == found[rank - 1]


def test_without_a_compiler_nothing_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert waits.why_not() == ""
    monkeypatch.setattr(waits, "_COMPILER", "no-such-compiler")
    assert waits.why_not() == "no no-such-compiler: expected a package gcc"
    layer = WaitsLayer(tmp_path)
    for _ in range(2):
        assert asyncio.run(layer.environment("g0")) == {}
    monkeypatch.delenv(VARIABLE, raising=False)
    assert Waits().tell() == {}
