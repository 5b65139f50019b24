"""Saves on a node wait for each other if the scenario limits them, whatever plan they are of."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.control.rehearsal import rehearse
from support.live_jobs import live_job, quiet_recorder

from node_agent.drivers.null import NullDriver
from testbed.bus.messages import GuestSpec, ProgramSpec
from testbed.control.cluster import Cluster
from testbed.control.executor import Executor, Flight
from testbed.control.planner import PlannedAction, Verb
from testbed.lab.operations import Operations
from testbed.run.events import Intent, Outcome
from testbed.run.journal import read_events
from testbed.run.phases import Phase
from testbed.scenario.schema import DeadlinesTable
from testbed.scheduling.workload.jobs import Job

SPEC = GuestSpec(
    guest="a", run="t", job=1, task=0, cpu_cores=1.0, memory_mib=10,
    program=ProgramSpec(name="eatcpu", work_units=10, units_per_iteration=10, seed=1),
)  # fmt: skip


class Began(Executor):
    """Notes the operations that begin, in place of performing them."""

    def _launch(self, live: Any, pending: Any) -> None:
        self._flights[live.job_id] = Flight(pending.action, 0.0, SimpleNamespace())  # type: ignore[arg-type]
        live.state.flight = object()

    def ends(self, job_id: int) -> None:
        del self._flights[job_id]
        self._cluster.jobs[job_id].state.flight = None
        self._cluster.jobs[job_id].state.phase = Phase.SAVED
        self.pump()

    @property
    def saving(self) -> list[int]:
        return sorted(self._flights)


def save(job_id: int, node: int, after: tuple[int, ...] = ()) -> PlannedAction:
    return PlannedAction(Verb.SAVE, job_id, (node,), 0.0, after)


@pytest.mark.parametrize("limit", [1, 2])
def test_no_node_saves_more_jobs_at_once_than_it_may(limit: int) -> None:
    async def main() -> None:
        recorder = quiet_recorder(lambda _event: None)
        recorder.history.name_nodes(("n0", "n1"))
        lives = [
            live_job(
                Job(number, 0.0, 1, 1.0, 0.1, 10.0), (SPEC,), recorder.history, phase=Phase.RUNNING,
                running_on=(number // 4,),
            )
            for number in range(5)
        ]  # fmt: skip
        operations = Operations(SimpleNamespace(), DeadlinesTable())  # type: ignore[arg-type]
        executor = Began(
            Cluster(lives, recorder.history), operations, SimpleNamespace(), recorder, [1000, 1000], 1,  # type: ignore[arg-type]
            saves_at_once=limit,
        )  # fmt: skip
        executor.submit([save(number, number // 4) for number in range(3)])
        assert executor.saving == list(range(limit))
        executor.pump()  # as when any other operation ends
        assert executor.saving == list(range(limit))
        executor.submit([save(3, 0), save(4, 1)])  # another plan, while saves of the last one are in progress
        assert executor.saving == [*range(limit), 4]
        for number in range(limit):
            executor.ends(number)
        assert executor.saving == [3, 4]

    asyncio.run(main())


def test_an_action_waits_until_the_one_before_it_has_ended() -> None:
    async def main() -> None:
        recorder = quiet_recorder(lambda _event: None)
        recorder.history.name_nodes(("n0", "n1"))
        lives = [
            live_job(Job(n, 0.0, 1, 1.0, 0.1, 10.0), (SPEC,), recorder.history, phase=Phase.RUNNING, running_on=(0,))
            for n in range(2)
        ]
        operations = Operations(SimpleNamespace(), DeadlinesTable())  # type: ignore[arg-type]
        executor = Began(Cluster(lives, recorder.history), operations, SimpleNamespace(), recorder, [1000], 1)  # type: ignore[arg-type]
        executor.submit([save(0, 0), save(1, 0, after=(0,))])
        executor.pump()
        assert executor.saving == [0]
        executor.ends(0)
        assert executor.saving == [1]

    asyncio.run(main())


def most_saves(run: Path) -> int:
    """Return the largest number of jobs whose saves were in progress on one node at the same time."""
    saving: Counter[int] = Counter()
    most = 0
    for event in read_events(run / "events.jsonl"):
        match event:
            case Intent(verb="save", nodes=nodes):
                saving.update(set(nodes))
                most = max(most, *saving.values())
            case Outcome(verb="save", nodes=nodes):
                saving.subtract(set(nodes))
    return most


@pytest.mark.parametrize(("limit", "expected"), [({}, 3), ({"saves_at_once": 1}, 1), ({"saves_at_once": 2}, 2)])
def test_a_run_keeps_the_limit_of_its_scenario(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: dict[str, int], expected: int
) -> None:
    """Three jobs on each node are paused for one that needs the memory of both."""
    save = NullDriver.save

    async def slow_save(self: NullDriver, *args: Any) -> Any:
        await asyncio.sleep(2.0)  # virtual time: a save takes 2 seconds, and no real ones
        return await save(self, *args)

    monkeypatch.setattr(NullDriver, "save", slow_save)
    jobs = [Job(number, 0.0, 1, 0.25, 0.3, 4000.0) for number in range(1, 7)]
    jobs.append(Job(7, 600.0, 2, 1.0, 0.9, 600.0))
    result, _ = rehearse(tmp_path, jobs, policy="GreedyP */OPT=MIN", migration=limit)
    assert result.summary["done"] == 7
    assert most_saves(result.path) == expected
