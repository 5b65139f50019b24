"""Random schedules with faults, in virtual time: after any failure, the journal folds to the controller's state."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support.control.disturbed import Disturbed
from support.control.rehearsal import BEST
from support.control.rehearsal_checks import workloads
from support.folds import folds_compared
from support.ordered import Operator

from node_agent.drivers.null import NullDriver
from node_agent.drivers.protocol import DriverError, DriverEvent
from testbed.control.order_messages import Request
from testbed.control.orders import RunStoppedError
from testbed.scheduling.workload.jobs import Job

NODES = 3
POLICIES = (
    BEST,
    "GreedyP */OPT=AVG",
    "/per/OPT=MIN",
    "Greedy */OPT=MIN",
    "/stretch-per/OPT=MAX",
    "GREEDY-PMTN-MIGR",
    "static/SGB",
    "/per/OPT=MIN/MOVES=1",
    "/per/OPT=MIN/KNOWS=cost",
)
OPERATIONS = ("start", "hold", "save", "release", "set_cap", "migrate", "adopt", "mpi_join")


@dataclass(frozen=True)
class Slip:
    """A call of a driver, the `number`th of its kind in a run, that takes `delay_s`, and fails if it `fails`."""

    operation: str
    number: int
    delay_s: float
    fails: bool


@dataclass(frozen=True)
class Blow:
    """A fault of a node at a wall second of the replay: its agent is killed or cut off, or one of its guests dies."""

    kind: str
    node: int
    at_s: float
    lasts_s: float


@dataclass(frozen=True)
class Intervention:
    """Orders of the operator: one at a wall second of the replay, and its reverse `lasts_s` later."""

    order: str
    node: int
    at_s: float
    lasts_s: float

    def orders(self) -> list[tuple[float, Request]]:
        node = f"node-{self.node}" if self.order == "drain" else None
        first = (self.at_s, Request(self.order, node=node))
        undo = {"pause": "continue", "drain": "return"}.get(self.order)
        # timers of the same instant have no order, and a node that stays drained may prevent the end of a run
        return [first] if undo is None else [first, (self.at_s + self.lasts_s + 1e-3, Request(undo, node=node))]


@dataclass(frozen=True)
class Schedule:
    """A run with faults, orders and a number of `replicas` of images; it is cancelled at `ends_s`, if given.

    A node makes at most `saves_at_once` saves at the same time.
    """

    jobs: tuple[Job, ...]
    policy: str
    live: bool
    restart: bool
    replicas: int
    saves_at_once: int | None
    slips: tuple[Slip, ...]
    blows: tuple[Blow, ...]
    interventions: tuple[Intervention, ...]
    ends_s: float | None


def slips() -> st.SearchStrategy[Slip]:
    return st.builds(
        Slip, st.sampled_from(OPERATIONS), st.integers(1, 12), st.sampled_from([0.0, 0.1, 2.0, 8.0]), st.booleans()
    )


def blows() -> st.SearchStrategy[Blow]:
    return st.builds(
        Blow,
        st.sampled_from(["kill", "cut", "die"]),
        st.integers(0, NODES - 1),
        st.floats(1.0, 60.0),
        st.sampled_from([0.5, 5.0, 30.0, 90.0]),
    )


def interventions() -> st.SearchStrategy[Intervention]:
    return st.builds(
        Intervention,
        st.sampled_from(["pause", "pause", "drain", "drain", "stop"]),
        st.integers(0, NODES - 1),
        st.floats(0.0, 60.0),
        st.sampled_from([0.0, 0.05, 0.5, 5.0, 30.0, 90.0]),
    )


def schedules() -> st.SearchStrategy[Schedule]:
    return st.builds(
        Schedule,
        workloads().map(tuple),
        st.sampled_from(POLICIES),
        st.booleans(),
        st.booleans(),
        st.integers(0, 1),
        st.sampled_from([None, 1]),
        st.lists(slips(), max_size=5).map(tuple),
        st.lists(blows(), max_size=3, unique_by=lambda blow: blow.node).map(tuple),
        st.lists(interventions(), max_size=4).map(tuple),
        st.none() | st.floats(1.0, 60.0),
    )


class Faults:
    """Applies the planned delays and failures to the calls of all drivers."""

    def __init__(self, slips: tuple[Slip, ...]) -> None:
        self._slips = {(slip.operation, slip.number): slip for slip in slips}
        self._calls: Counter[str] = Counter()
        self.begun = False
        self.drivers: set[NullDriver] = set()

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for operation in OPERATIONS:
            patch.setattr(NullDriver, operation, self._slipping(operation, getattr(NullDriver, operation)))

    def _slipping(self, operation: str, real: Callable[..., object]) -> Callable[..., object]:
        async def call(driver: NullDriver, *arguments: object) -> object:
            if not self.begun:
                return await real(driver, *arguments)
            self.drivers.add(driver)
            self._calls[operation] += 1
            slip = self._slips.get((operation, self._calls[operation]))
            if slip is not None:
                await asyncio.sleep(slip.delay_s)  # the length of the fault, in virtual time
                if slip.fails:
                    raise DriverError(f"{operation} number {slip.number} fails")
            return await real(driver, *arguments)

        return call

    def die(self, node: int) -> None:
        """Let a guest of one of the drivers in use end by itself."""
        alive = [(driver, guest) for driver in self.drivers for guest in sorted(driver._guests)]
        if alive:
            driver, guest = sorted(alive, key=lambda each: each[1])[node % len(alive)]
            now_ns = int(asyncio.get_running_loop().time() * 1e9)
            found = driver._guests.pop(guest)
            if found.end is not None:
                found.end.cancel()
            driver._tell(DriverEvent(guest, "failed", now_ns, {"reason": "it ended by itself"}))


def carry_out(schedule: Schedule, folder: Path) -> list[str]:
    """Make the run; return the differences between the controller and its journal."""
    faults = Faults(schedule.slips)

    def begin(world: Disturbed) -> None:
        loop = asyncio.get_running_loop()
        faults.begun = True
        for blow in schedule.blows:
            name = f"node-{blow.node}"
            act: tuple[object, ...] = {
                "kill": (world.kill, name, blow.lasts_s),
                "cut": (world.cut, blow.lasts_s, f"agent-{name}"),
                "die": (faults.die, blow.node),
            }[blow.kind]
            loop.call_later(blow.at_s, *act)
        if schedule.ends_s is not None:
            (controller,) = (task for task in asyncio.all_tasks() if task.get_coro().__name__ == "run_session")
            loop.call_later(schedule.ends_s, controller.cancel)

    extras = "whole,live" if schedule.live else ""
    world = Disturbed(begin, at_s=0.0, extras=extras)
    migration: dict[str, object] = {"mechanism": "live"} if schedule.live else {}
    if schedule.saves_at_once is not None:
        migration |= {"saves_at_once": schedule.saves_at_once}
    operator = Operator(*(order for each in schedule.interventions for order in each.orders()))
    with (
        pytest.MonkeyPatch.context() as patch,
        operator.at_work(),
        folds_compared() as different,
        suppress(asyncio.CancelledError, RunStoppedError),
    ):
        faults.install(patch)
        world.run(
            folder, list(schedule.jobs), count=NODES, policy=schedule.policy,
            on_node_loss="restart" if schedule.restart else "fail", images={"replicas": schedule.replicas},
            extras=extras, migration=migration, overheads="constant:300",
        )  # fmt: skip
    return different


def check(schedule: Schedule, folder: Path) -> None:
    jobs = tuple(job for job in schedule.jobs if job.tasks <= NODES * int(1 / job.mem_req_frac))
    assume(jobs)
    assert carry_out(replace(schedule, jobs=jobs), folder) == []


@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(schedules())
def test_a_journal_folds_to_the_state_of_the_controller(
    tmp_path_factory: pytest.TempPathFactory, schedule: Schedule
) -> None:
    check(schedule, tmp_path_factory.mktemp("run"))


@pytest.mark.long
@settings(max_examples=1000, suppress_health_check=list(HealthCheck))
@given(schedules())
def test_a_thousand_journals_fold_to_the_state_of_the_controller(
    tmp_path_factory: pytest.TempPathFactory, schedule: Schedule
) -> None:
    check(schedule, tmp_path_factory.mktemp("run"))
