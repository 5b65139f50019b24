"""Comparison of the guests of a dry run's agents with the history of the run, after each operation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from node_agent.agent import Agent
from node_agent.drivers.null import NullDriver
from node_agent.drivers.protocol import DriverEvent
from node_agent.guest_events import GuestEvents
from testbed.control.recorder import Recorder
from testbed.run import events
from testbed.run.history import History


class Holdings:
    """The agents with null drivers in this process, by node, and the guests that have ended by themselves."""

    def __init__(self) -> None:
        self.different: list[str] = []
        self.compared = 0
        self._agents: dict[str, Agent] = {}
        self._ended: set[str] = set()  # guests, on any node
        self._begun: dict[int, dict[str, Agent]] = {}  # the agents when an operation began

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Watch agents and recorders that are created from now on."""
        run, put, made = Agent.run, GuestEvents.put, Recorder.__post_init__

        async def running(agent: Agent) -> None:
            name = agent._config.node
            if isinstance(agent._driver, NullDriver):
                self._agents[name] = agent
            try:
                await run(agent)
            finally:
                if self._agents.get(name) is agent:
                    del self._agents[name]

        def putting(told: GuestEvents, driver_event: DriverEvent) -> None:
            if driver_event.event in ("done", "failed"):
                self._ended.add(driver_event.guest)
            put(told, driver_event)

        def making(recorder: Recorder) -> None:
            made(recorder)
            recorder.ledger.listen(lambda event: self._hear(recorder.history, event))

        patch.setattr(Agent, "run", running)
        patch.setattr(GuestEvents, "put", putting)
        patch.setattr(Recorder, "__post_init__", making)

    def _hear(self, history: History, event: events.Event) -> None:
        if isinstance(event, events.Intent):
            self._begun[event.action] = dict(self._agents)
        elif isinstance(event, events.Outcome) and event.ok and self._agents:
            self.compared += 1
            at = f"{event.verb} {event.action} of job {event.job} at {event.t_s:g} s"
            self.different += [f"{at}: {what}" for what in self._differences(history, event)]

    def _known(self, history: History, event: events.Outcome) -> dict[int, Agent]:
        """Return the agents of nodes that can be commanded, and have had the same one since the operation began."""
        begun = self._begun.get(event.action, {})
        return {
            index: self._agents[node.name]
            for index, node in enumerate(history.nodes)
            if node.reachable and node.name in self._agents and begun.get(node.name) is self._agents[node.name]
        }

    def _differences(self, history: History, event: events.Outcome) -> Iterator[str]:
        job, known = history.jobs[event.job], self._known(history, event)
        for task, guest in enumerate(job.guests):
            told = job.places(task)
            held = {node for node, agent in known.items() if guest in agent._driver._guests}
            if held - told:
                yield f"{guest} is held on nodes {sorted(held - told)}: the history has it on {sorted(told)}"
            if (told & known.keys()) - held and guest not in self._ended:
                yield f"{guest} is held on nodes {sorted(held)}: the history has it on {sorted(told)}"
        for node, image in zip(job.saved_on or (), job.images, strict=False):
            if node in known and image.name not in known[node]._stores.all():
                yield f"node {node} has no image {image.name}: the history has it there"
            if (node, image.name) not in job.image_holders:
                yield f"image {image.name} has no holder on node {node}, where it is restored from"
