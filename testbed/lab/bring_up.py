"""Brings up the lab of a run: real nodes with a broker, or the simulated nodes of a dry run in this process."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

from testbed.bus.address import BrokerAddress
from testbed.bus.broker import Preference, broker
from testbed.bus.client import MqttBus
from testbed.bus.memory import MemoryHub
from testbed.bus.protocol import Bus, BusError
from testbed.bus.quotas import CONTROLLER_SESSION_S
from testbed.errors import UserError
from testbed.lab.box.control_group import joined
from testbed.lab.box.state import find
from testbed.lab.boxes import spec_of
from testbed.lab.lab_record import LabRecord
from testbed.lab.local_agents import local_agents, remove_empty
from testbed.scenario.schema import Scenario

_BROKER = "broker"  # folder of the broker's state
_AFTER_LEASE_S = 30.0  # the broker keeps the session longer than the lease of a disconnected controller lasts

BringUp = Callable[[Scenario, Path, str], AbstractAsyncContextManager[Bus]]


@contextlib.asynccontextmanager
async def live_lab(scenario: Scenario, run_path: Path, client_id: str) -> AsyncIterator[Bus]:
    """Start the scenario's broker and agents, or use existing ones; yield the controller's bus."""
    own = [node for node in scenario.nodes if node.spawn]
    async with contextlib.AsyncExitStack() as stack:
        record = LabRecord.open(run_path) if scenario.on_controller_loss == "keep" else None
        folder = stack.enter_context(_state_folder(record))
        if scenario.box is not None:
            address = await asyncio.to_thread(_box_broker, scenario)
            stack.enter_context(joined(scenario.lab))
        elif scenario.broker.kind is not None:
            address = await stack.enter_async_context(_own_broker(scenario.broker.kind, folder, record))
        else:
            address = BrokerAddress.parse(scenario.broker.address, scenario.broker.tls_dir)
        try:
            session_s = max(CONTROLLER_SESSION_S, scenario.deadlines.lease_ttl_s + _AFTER_LEASE_S)
            bus = MqttBus(address, client_id, session_s=session_s, end_session=True)
            await stack.enter_async_context(bus)
        except BusError as error:
            raise UserError(str(error)) from error
        agents = local_agents(own, scenario.lab, address.url, run_path, folder=folder, record=record)
        await stack.enter_async_context(agents)
        yield bus


@contextlib.contextmanager
def _state_folder(record: LabRecord | None) -> Iterator[Path]:
    """Yield the folder with the state of broker and agents: that of an earlier controller, if there is one."""
    known = None if record is None else record.folder
    folder = known or Path(tempfile.mkdtemp(prefix="dfrs-"))  # a short path, as socket names have at most 107 bytes
    try:
        yield folder
    finally:
        if record is None or not record.taking_over:
            shutil.rmtree(folder / _BROKER, ignore_errors=True)
            remove_empty(folder)


@contextlib.asynccontextmanager
async def _own_broker(kind: Preference, folder: Path, record: LabRecord | None) -> AsyncIterator[BrokerAddress]:
    """Run a broker inside the block, with the port and the password of a lost controller's broker, if there was one.

    So agents that have outlived their controller reconnect by themselves.
    """
    known = BrokerAddress.parse(record.broker) if record is not None and record.broker else None
    # without a record the broker must not use `folder`: agents of a killed controller remove it only if it is empty
    state_dir = None if record is None else folder / _BROKER
    port, password = (0, "") if known is None else (known.port, known.password or "")
    async with broker(kind, state_dir=state_dir, port=port, password=password) as running:
        if record is not None:
            record.note_lab(folder, running.address.url)
        yield running.address


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
    """Run agents with simulated guests on a bus inside this process, and yield the controller's bus."""
    # a dry run uses the agents' own code, which no other function of the controller imports
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
                        NullDriver("whole,live") if scenario.migration.mechanism != "save-restore" else NullDriver(),
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
