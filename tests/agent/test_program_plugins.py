"""Programs that are plug-ins: found by name, run as guests, and verified if they have an expected result."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import msgspec
import pytest
from support.agent.process_suite import ProcessSuite as _Base

from node_agent.drivers.procs import environment
from node_agent.drivers.protocol import DriverError, DriverEvent
from node_agent.programs.catalogue import BUILT_IN, find_program, installed
from node_agent.programs.task import Task, TaskError
from node_agent.verifier import Verifier
from testbed.bus.messages import GuestSpec, ProgramSpec
from testbed.testing.nodes import Node

Install = Callable[[str, str, str], Path]

COUNTERS = """
import numpy as np
from node_agent.programs.catalogue import Program
from node_agent.programs.words import seed_of

class Counter:
    def __init__(self, task):
        self.arrays = [np.zeros(1, dtype=np.uint64)]
        self.scratch = np.zeros(20_000)

    def run(self, units):
        for _ in range(units):
            np.sqrt(self.scratch, out=self.scratch)
        self.arrays[0][0] += np.uint64(units)

    def checksum(self):
        return seed_of(int(self.arrays[0][0]))

def expected(task, given_up):
    return seed_of(sum(task.share(i) for i in range(task.iterations)))

def broken(task, given_up):
    raise ZeroDivisionError("no idea")

KNOWN = Program(Counter, expected)
UNKNOWN = Program(Counter)
BROKEN = Program(Counter, broken)
"""
POINTS = """[testbed.programs]
counter = dfrs_counters:KNOWN
quiet-counter = dfrs_counters:UNKNOWN
broken-counter = dfrs_counters:BROKEN
no-program = dfrs_counters:Counter
missing = dfrs_counters:MISSING
eatcpu = dfrs_counters:KNOWN
"""


@pytest.fixture
def counters(install_plugin: Install) -> Path:
    return install_plugin("dfrs_counters", COUNTERS, POINTS)


def spec(name: str) -> GuestSpec:
    program = ProgramSpec(name=name, work_units=1000, units_per_iteration=100, seed=1)
    return GuestSpec(guest="a", run="r", job=1, task=0, program=program, cpu_cores=1.0, memory_mib=64)


def test_names_are_told_without_loading_anything(install_plugin: Install) -> None:
    install_plugin("dfrs_bomb", "raise SystemError('loaded')", "[testbed.programs]\nbomb = dfrs_bomb:X\n")
    assert installed() == (*BUILT_IN, "bomb")
    with pytest.raises(TaskError, match=r"program 'bomb' \(dfrs_bomb:X\): SystemError: loaded"):
        find_program("bomb")


def test_what_is_no_program_is_told(counters: Path) -> None:
    for name, words in (
        ("countr", "program 'countr': expected one of eatcpu, patterns, .*; nearest: counter"),
        ("os.system", "program 'os.system': expected one of"),
        ("no-program", "expected a Program, found <class"),
        ("missing", "AttributeError"),
    ):
        with pytest.raises(TaskError, match=words):
            find_program(name)


def test_a_plug_in_does_not_take_the_place_of_a_built_in(counters: Path) -> None:
    assert installed()[:2] == BUILT_IN
    assert len(set(installed())) == len(installed())
    work = find_program("eatcpu").work(Task.from_spec(msgspec.to_builtins(spec("eatcpu"))))
    assert type(work).__name__ == "Kernel"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("quiet-counter", "program 'quiet-counter' has no `expected` function"),
        ("broken-counter", "program 'broken-counter': ZeroDivisionError: no idea"),
    ],
)
def test_what_nobody_can_verify_says_so(
    counters: Path, name: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> DriverEvent:
        verifier = Verifier()
        verifier.begin(spec(name))
        return await verifier.check(DriverEvent("a", "done", 1, {"checksum": "0" * 16}))

    with caplog.at_level(logging.CRITICAL):
        told = asyncio.run(main())
    assert told.event == "done"
    assert told.detail == {"checksum": "0" * 16, "verified": False, "unverified": reason}


@pytest.mark.slow
class TestGuests:
    suite = _Base()

    def test_a_plug_in_is_held_saved_restored_and_comes_to_the_right_result(
        self, tmp_path: Path, counters: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        root = os.pathsep.join((str(environment._ROOT), str(counters)))
        monkeypatch.setattr(environment, "_ROOT", root)

        async def scenario(node: Node) -> None:
            assert node.facts is not None
            assert "counter" in node.facts.programs
            one = self.suite.spec("a", self.suite.throttled_s)
            one = msgspec.structs.replace(one, program=msgspec.structs.replace(one.program, name="counter"))
            await self.suite.throttle(node, one)
            at = await node.driver.hold("a")
            image = node.budget.image_dir / "a.img"
            await node.driver.save("a", at, image)
            verifier = Verifier()
            verifier.begin(one)
            await node.driver.restore(one, 1.0, image)
            told = await verifier.check(await node.until("a", "done"))
            assert told.detail["verified"] is True
            work = asdict(Task.from_spec(msgspec.to_builtins(one)))
            assert told.detail["units"] == work["work_units"]

        self.suite.on_nodes(tmp_path / "nodes", 1, scenario)

    def test_ranks_of_a_plug_in_exchange_messages_that_are_verified(
        self, tmp_path: Path, counters: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        root = os.pathsep.join((str(environment._ROOT), str(counters)))
        monkeypatch.setattr(environment, "_ROOT", root)

        async def scenario(node: Node) -> None:
            specs = [
                msgspec.structs.replace(each, program=msgspec.structs.replace(each.program, name="counter"))
                for each in self.suite.job(2, 0.2)
            ]
            verifier = Verifier()
            for each in specs:
                verifier.begin(each)
            await self.suite.start_job([(node, each) for each in specs])
            for each in specs:
                told = await verifier.check(await node.until(each.guest, "done"))
                assert told.detail["verified"] is True
                assert told.detail["messages"] > 0

        self.suite.on_nodes(tmp_path / "nodes", 1, scenario)

    def test_what_is_not_installed_is_not_run(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            one = self.suite.spec("a")
            for name in ("counter", "node_agent.cli", "../eatcpu"):
                other = msgspec.structs.replace(one, program=msgspec.structs.replace(one.program, name=name))
                with pytest.raises(DriverError, match="expected one of eatcpu, patterns"):
                    await node.driver.start(other, 1.0)
            assert node.driver.sample() == []

        self.suite.on_nodes(tmp_path, 1, scenario)
