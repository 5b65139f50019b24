"""The two kinds of lab of a run: real nodes over a broker, or a dry run in this process without real guests."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

from testbed.bus.address import BrokerAddress
from testbed.bus.broker import broker
from testbed.bus.client import MqttBus
from testbed.bus.memory import MemoryHub
from testbed.bus.protocol import Bus, BusError
from testbed.bus.quotas import CONTROLLER_SESSION_S
from testbed.errors import UserError
from testbed.lab.box.control_group import joined
from testbed.lab.box.state import find
from testbed.lab.boxes import spec_of
from testbed.lab.local_agents import local_agents
from testbed.scenario.schema import Scenario

_AFTER_LEASE_S = 30.0  # a disconnected controller returns while its lease lasts

BringUp = Callable[[Scenario, Path, str], AbstractAsyncContextManager[Bus]]


@contextlib.asynccontextmanager
async def live_lab(scenario: Scenario, run_path: Path, client_id: str) -> AsyncIterator[Bus]:
    """Bring up the scenario's broker and agents; yields the controller's bus."""
    async with contextlib.AsyncExitStack() as stack:
        if scenario.box is not None:
            address = await asyncio.to_thread(_box_broker, scenario)
            stack.enter_context(joined(scenario.lab))
        elif scenario.broker.kind is not None:
            address = (await stack.enter_async_context(broker(scenario.broker.kind))).address
        else:
            address = BrokerAddress.parse(scenario.broker.address, scenario.broker.tls_dir)
        try:
            session_s = max(CONTROLLER_SESSION_S, scenario.deadlines.lease_ttl_s + _AFTER_LEASE_S)
            bus = MqttBus(address, client_id, session_s=session_s, end_session=True)
            await stack.enter_async_context(bus)
        except BusError as error:
            raise UserError(str(error)) from error
        own = [node for node in scenario.nodes if node.spawn]
        await stack.enter_async_context(local_agents(own, scenario.lab, address.url, run_path))
        yield bus


def _box_broker(scenario: Scenario) -> BrokerAddress:
    """Return the broker of a lab in a box; raises `UserError` unless that lab is up, with the scenario's nodes."""
    wanted, state = spec_of(scenario), find(scenario.lab)
    if state is None or state.phase != "up":
        found = "not up" if state is None else "not complete"
        raise UserError(f"lab {scenario.lab} is {found}: run `testbed lab up FILE` with this scenario's file")
    if state.spec != wanted:
        raise UserError(f"lab {scenario.lab} is up with other nodes or settings, from {state.scenario}")
    return BrokerAddress.parse(state.broker_url)


@contextlib.asynccontextmanager
async def dry_lab(scenario: Scenario, run_path: Path, client_id: str) -> AsyncIterator[Bus]:
    """The same controller and the same agents, with simulated guests, on a bus inside this process."""
    # a dry run uses the agents' own code; only this function of the controller imports them
    from node_agent.agent import Agent, AgentConfig  # noqa: PLC0415  # see above
    from node_agent.drivers.null import NullDriver  # noqa: PLC0415  # see above

    del run_path
    hub = MemoryHub()
    with tempfile.TemporaryDirectory(prefix="dfrs-dry-") as folder:
        async with hub.client(client_id) as bus:
            agents = []
            for node in scenario.nodes:
                place = Path(folder) / node.name
                images = place / "images"
                config = AgentConfig(
                    scenario.lab,
                    node.name,
                    node.cpus,
                    node.memory_mib,
                    place,
                    images,
                    str(images),
                    serve_images=False,
                    image_budget_mib=node.image_budget_mib,
                )
                agents.append(
                    Agent(
                        config,
                        NullDriver("whole,live") if scenario.migration.mechanism == "live" else NullDriver(),
                        partial(hub.client, f"agent-{node.name}"),
                    )
                )
            tasks = [asyncio.create_task(agent.run(), name="rehearsing agent") for agent in agents]
            try:
                yield bus
            finally:
                for agent in agents:
                    agent.stop()
                await asyncio.gather(*tasks)
