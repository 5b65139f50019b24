"""Runs whose bus, nodes or agents go away for a while: nothing is lost that is still there. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from rehearsal import Watcher, five_jobs, rehearse

from node_agent.agent import Agent
from node_agent.drivers.null import NullDriver
from testbed.bus.memory import MemoryHub
from testbed.bus.messages import GuestEvent, decode
from testbed.bus.protocol import Message
from testbed.scheduling.workload.jobs import Job

BEGINS_S = 6.0  # wall seconds of a replay of about a minute
MOMENTS_S = [3.0, 6.0, 7.5, 12.0]


async def at_once(function: Callable[..., object], *arguments: object) -> object:
    """Do in the loop what an agent does in a thread: threads and virtual time do not go together."""
    return function(*arguments)


class Disturbed:
    """A rehearsal in which something is done to the bus and the agents; drivers of new agents have `extras`."""

    def __init__(self, disturb: Callable[[Disturbed], None], at_s: float = BEGINS_S, extras: str = "") -> None:
        self.hub = MemoryHub()
        self._extras = extras
        self._disturb = disturb
        self._at_s = at_s
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._back_after_s: dict[str, float] = {}
        self._begun = False

    @property
    def clients(self) -> list[str]:
        return list(self.hub._sessions)

    def cut(self, seconds: float, *clients: str) -> None:
        """Cut clients off the bus for so many seconds."""
        for client in clients:
            self.hub.drop(client)
            asyncio.get_running_loop().call_later(seconds, self.hub.resume, client)

    def kill(self, node: str, seconds: float) -> None:
        """Kill the agent of a node; another one is there after so many seconds."""
        self._back_after_s[node] = seconds
        self.hub.drop(f"agent-{node}")
        self._tasks[node].cancel()

    async def _run(self, first: Agent, run: Callable[[Agent], object]) -> None:
        node = first._config.node
        task = self._tasks[node] = asyncio.current_task()
        try:
            await run(first)
        except asyncio.CancelledError:
            if node not in self._back_after_s:
                raise
            task.uncancel()
            await asyncio.sleep(self._back_after_s[node])  # the length of the fault, in virtual time
            second = Agent(first._config, NullDriver(self._extras), first._connect)
            ends = asyncio.ensure_future(first._stopping.wait())
            ends.add_done_callback(lambda _done: second.stop())
            await run(second)

    def run(self, tmp_path: Path, jobs: list[Job], **changes: object):
        """Return summary and journal of the run."""
        run = Agent.run

        def look(picture) -> None:
            if not self._begun and picture.wall_s >= self._at_s:
                self._begun = True
                self._disturb(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Agent, "run", lambda agent: self._run(agent, run))
            patch.setattr("testbed.lab.bring_up.MemoryHub", lambda: self.hub)
            patch.setattr(asyncio, "to_thread", at_once)
            result, journal = rehearse(tmp_path, jobs, watcher=Watcher(look), **changes)
        assert self._begun
        return result.summary, journal


def standings(journal, node: str) -> list[str]:
    return [entry["standing"] for entry in journal if entry["kind"] == "node" and entry["node"] == node]


@pytest.mark.parametrize("at_s", MOMENTS_S)
@pytest.mark.parametrize("seconds", [10.0, 60.0])
def test_a_broker_that_is_away_for_a_while_costs_no_job(tmp_path: Path, seconds: float, at_s: float) -> None:
    world = Disturbed(lambda world: world.cut(seconds, *world.clients), at_s)
    summary, journal = world.run(tmp_path, five_jobs())
    assert (summary["done"], summary["failed"]) == (5, {})
    assert "lost" not in standings(journal, "node-0") + standings(journal, "node-1")


class Holding:
    """A broker that acknowledges an event, and is killed before a busy controller has taken it."""

    def __init__(self, event: str) -> None:
        self.held: list[Message] = []
        self._event = event

    def __call__(self, world: Disturbed) -> None:
        (controller,) = (session for client, session in world.hub._sessions.items() if not client.startswith("agent-"))
        put = controller.put

        def hold(message: Message, qos: int) -> None:
            due = message.topic.endswith("/event") and decode(GuestEvent, message.payload).event == self._event
            if not self.held and not due:
                put(message, qos)
                return
            if not self.held:
                asyncio.get_running_loop().call_later(2.0, die)
            self.held.append(message)

        def die() -> None:
            controller.put = put
            world.cut(10.0, *world.clients)

        controller.put = hold


@pytest.mark.parametrize("at_s", MOMENTS_S)
def test_what_a_killed_broker_had_not_passed_on_is_told_again(tmp_path: Path, at_s: float) -> None:
    holding = Holding("done")
    summary, journal = Disturbed(holding, at_s).run(tmp_path, five_jobs())
    assert holding.held
    assert (summary["done"], summary["failed"]) == (5, {})
    ends = [
        (entry["job"], entry["task"]) for entry in journal if (entry["kind"], entry.get("event")) == ("guest", "done")
    ]
    assert len(ends) == len(set(ends)), "an end that is told twice counts once"


@pytest.mark.parametrize("at_s", [0.0, 3.0])  # before each parallel job begins
def test_a_broker_that_is_killed_with_the_word_of_a_barrier_costs_no_job(tmp_path: Path, at_s: float) -> None:
    holding = Holding("mpi-barrier")
    summary, journal = Disturbed(holding, at_s).run(tmp_path, five_jobs())
    assert holding.held
    assert (summary["done"], summary["failed"]) == (5, {})
    assert [entry for entry in journal if entry["kind"] == "retry"] == []  # no start that waited in vain


@pytest.mark.parametrize("at_s", MOMENTS_S)
def test_a_node_that_is_cut_off_for_half_a_minute_costs_no_job(tmp_path: Path, at_s: float) -> None:
    world = Disturbed(lambda world: world.cut(30.0, "agent-node-1"), at_s)
    summary, journal = world.run(tmp_path, five_jobs())
    assert (summary["done"], summary["failed"]) == (5, {})
    assert standings(journal, "node-1") == ["suspect", "online"]
    assert standings(journal, "node-0") == []


def test_a_node_that_is_cut_off_for_too_long_is_lost_and_what_ran_there_has_failed(tmp_path: Path) -> None:
    jobs = [Job(1, 0, 1, 1.0, 0.6, 7200), Job(2, 0, 1, 1.0, 0.6, 9000), Job(3, 60, 1, 1.0, 0.6, 600)]
    world = Disturbed(lambda world: world.cut(70.0, "agent-node-1"))
    summary, journal = world.run(tmp_path, jobs, policy="EASY")
    assert standings(journal, "node-1") == ["suspect", "lost", "online"]
    assert summary["done"] == 2
    ((_, reason),) = summary["failed"].items()
    assert reason.startswith("node node-1 is lost (silent for 6")
    assert list(summary["failure_codes"].values()) == ["node-lost"]
    places = {entry["job"]: entry["nodes"] for entry in journal if entry["kind"] == "intent"}
    assert places[3] == [1]  # on that node, whose guest of the failed job was removed when it was back


@pytest.mark.parametrize("loss", ["fail", "restart"])
@pytest.mark.parametrize("at_s", MOMENTS_S)
def test_an_agent_that_is_killed_takes_only_what_ran_there(tmp_path: Path, at_s: float, loss: str) -> None:
    world = Disturbed(lambda world: world.kill("node-1", 3.0), at_s)
    summary, journal = world.run(tmp_path, five_jobs(), on_guest_loss=loss)
    assert standings(journal, "node-1") == ["suspect", "online"]
    if loss == "restart":
        assert (summary["done"], summary["failed"]) == (5, {})
    else:
        assert summary["failed"]
        assert set(summary["failed"].values()) == {"node node-1: its agent was restarted"}
        assert set(summary["failure_codes"].values()) == {"agent-restarted"}
        assert summary["done"] + len(summary["failed"]) == 5


def test_a_job_that_needs_a_lost_node_waits_for_it_while_there_is_other_work(tmp_path: Path) -> None:
    jobs = [Job(1, 0, 1, 1.0, 0.4, 12000), Job(2, 900, 2, 1.0, 0.4, 60)]
    world = Disturbed(lambda world: world.cut(90.0, "agent-node-1"))
    summary, journal = world.run(tmp_path, jobs, policy="EASY")
    assert standings(journal, "node-1") == ["suspect", "lost", "online"]
    assert (summary["done"], summary["failed"]) == (2, {})
