"""The blocking twins: every public method of the original, in an event loop of another thread."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.deadlines import PATIENT

from testbed import BlockingLab, BlockingLabJob, Lab, LabJob, UserError, open_lab
from testbed.lab.bring_up import dry_lab
from testbed.lab.portal import Portal
from testbed.lab.twins import derive
from testbed.scenario.schema import check_scenario


@pytest.fixture(scope="module")
def lab() -> Iterator[BlockingLab]:
    table = {
        "name": "l", "policy": "FCFS", "workload": {}, "nodes": [{"name": "a"}, {"name": "b"}], "deadlines": PATIENT,
    }  # fmt: skip
    with open_lab(check_scenario(table, Path("lab.toml")), bring_up=dry_lab) as opened:
        yield opened


@pytest.mark.parametrize(("original", "twin"), [(Lab, BlockingLab), (LabJob, BlockingLabJob)])
def test_a_twin_has_what_its_original_has(original: type, twin: type) -> None:
    members = {name: member for name, member in vars(original).items() if not name.startswith("_")}
    assert members
    for name, member in members.items():
        mine = vars(twin)[name]
        assert mine.__doc__ == member.__doc__
        if isinstance(member, property):
            assert isinstance(mine, property)
        else:
            assert not inspect.iscoroutinefunction(mine)
            assert inspect.signature(mine) == inspect.signature(member)


def test_a_job_goes_through_its_operations(lab: BlockingLab) -> None:
    with lab.job(tasks=2, memory_mib=256) as job:
        assert isinstance(job, BlockingLabJob)
        assert job.start().start_s >= 0.0
        assert job.cap(0.5).caps_cores == {0: 0.5, 1: 0.5}
        job.save()
        job.restore(nodes=("b", "a"))
        assert job.nodes == ("b", "a")
        assert set(job.progress()) == set(job.guests)
        assert [len(lab.guests_on(node)) for node in lab.nodes] == [1, 1]
    assert [lab.guests_on(node) for node in lab.nodes] == [[], []]


def test_errors_are_those_of_the_original(lab: BlockingLab) -> None:
    with pytest.raises(UserError, match="node 'c': expected one of a, b"):
        lab.job(nodes=("c",))
    with pytest.raises(TypeError, match="unexpected keyword argument 'task'"):
        lab.job(task=2)  # type: ignore[call-arg]


def test_operations_can_run_side_by_side_from_several_threads(lab: BlockingLab) -> None:
    with lab.job(nodes=("a",)) as one, lab.job(nodes=("b",)) as other, ThreadPoolExecutor(2) as beside:
        for done in [beside.submit(job.start) for job in (one, other)]:
            done.result()
        assert {len(lab.guests_on(node)) for node in lab.nodes} == {1}


def test_a_lab_opens_where_a_loop_runs_already(lab: BlockingLab) -> None:
    async def main() -> tuple[str, ...]:
        with lab.job() as job:  # as in a notebook, whose cells run in a loop
            job.start()
            return job.nodes

    assert asyncio.run(main()) == ("a",)


class Counter:
    """An object with coroutines."""

    def __init__(self) -> None:
        self.threads: set[int] = set()

    @property
    def here(self) -> int:
        """A value."""
        return len(self.threads)

    def plain(self, more: int = 1) -> int:
        """Return a number."""
        self.threads.add(threading.get_ident())
        return more

    async def slow(self) -> Counter:
        """Return itself."""
        await asyncio.sleep(0)  # a turn of the event loop
        self.threads.add(threading.get_ident())
        return self

    def _hidden(self) -> None: ...


def test_a_derived_class_works_in_the_loop_alone_and_hides_what_is_private() -> None:
    Blocking = derive("Blocking", Counter)  # noqa: N806  # a class
    with Portal() as portal:
        twin = Blocking(portal, Counter())
        assert twin.plain(more=3) == 3
        assert twin.slow() is twin
        assert twin.here == 1
        assert twin.original.threads != {threading.get_ident()}
        assert not hasattr(twin, "_hidden")
        assert not hasattr(twin, "__enter__")
