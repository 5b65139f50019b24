"""Runs whose bus, nodes or agents are away for a while: guests that still exist are not lost. In virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.control.disturbed import Disturbed
from support.control.rehearsal import five_jobs

from testbed.bus.messages import GuestEvent, decode
from testbed.bus.protocol import Message
from testbed.scheduling.workload.jobs import Job

MOMENTS_S = [3.0, 6.0, 7.5, 12.0]


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
    """A broker that acknowledges an event, and is killed before a busy controller has received it."""

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
    assert len(ends) == len(set(ends)), "an end that is reported twice counts once"


@pytest.mark.parametrize("at_s", [0.0, 3.0])  # before each parallel job begins
def test_a_broker_that_is_killed_with_the_word_of_a_barrier_costs_no_job(tmp_path: Path, at_s: float) -> None:
    holding = Holding("mpi-barrier")
    summary, journal = Disturbed(holding, at_s).run(tmp_path, five_jobs())
    assert holding.held
    assert (summary["done"], summary["failed"]) == (5, {})
    assert [entry for entry in journal if entry["kind"] == "retry"] == []  # no start waited in vain


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
    assert places[3] == [1]  # on the returned node, whose guest of the failed job was removed


@pytest.mark.parametrize("loss", ["fail", "restart"])
@pytest.mark.parametrize("at_s", MOMENTS_S)
def test_an_agent_that_is_killed_takes_only_what_ran_there(tmp_path: Path, at_s: float, loss: str) -> None:
    world = Disturbed(lambda world: world.kill("node-1", 3.0), at_s)
    summary, journal = world.run(tmp_path, five_jobs(), on_node_loss=loss)
    assert standings(journal, "node-1") == ["suspect", "online"]
    if loss == "restart":
        assert (summary["done"], summary["failed"]) == (5, {})
    else:
        assert summary["failed"]
        assert set(summary["failed"].values()) == {"node node-1: its agent was restarted"}
        assert set(summary["failure_codes"].values()) == {"agent-restarted"}
        assert summary["done"] + len(summary["failed"]) == 5


@pytest.mark.parametrize("at_s", [0.0, *MOMENTS_S, 20.0])
def test_an_agent_that_is_killed_and_takes_over_its_guests_costs_no_job(tmp_path: Path, at_s: float) -> None:
    world = Disturbed(lambda world: world.kill("node-1", 3.0), at_s, outlive=True)
    summary, journal = world.run(tmp_path, five_jobs())
    assert standings(journal, "node-1") == ["suspect", "online"]
    assert (summary["done"], summary["failed"]) == (5, {})
    ends = [
        (entry["job"], entry["task"]) for entry in journal if (entry["kind"], entry.get("event")) == ("guest", "done")
    ]
    assert len(ends) == len(set(ends))


def test_a_job_that_needs_a_lost_node_waits_for_it_while_there_is_other_work(tmp_path: Path) -> None:
    jobs = [Job(1, 0, 1, 1.0, 0.4, 12000), Job(2, 900, 2, 1.0, 0.4, 60)]
    world = Disturbed(lambda world: world.cut(90.0, "agent-node-1"))
    summary, journal = world.run(tmp_path, jobs, policy="EASY")
    assert standings(journal, "node-1") == ["suspect", "lost", "online"]
    assert (summary["done"], summary["failed"]) == (2, {})
