"""Too many messages of an agent wait for the broker: its guests keep running, and their events are sent later."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.deadlines import PATIENT_DEADLINES

from node_agent.agent import Agent, AgentConfig
from node_agent.drivers.null import NullDriver
from testbed.bus.guest_details import GuestReport
from testbed.bus.memory import MemoryHub
from testbed.bus.messages import GuestSpec, ListGuests, ProgramSpec, Start
from testbed.bus.outbox import Outbox, Parcel
from testbed.bus.protocol import FullError, Message, Presence
from testbed.bus.telemetry import Telemetry
from testbed.lab.fleet import Node
from testbed.lab.leased import lease_lab
from testbed.lab.replies import Guests, ask
from testbed.lab.virtual_time import run_in_virtual_time


class FullOutbox(Outbox):
    """A bus without room for messages on the topics that end with `full`."""

    full = ""
    refused = 0

    def put(self, message: Message) -> Parcel:
        if self.full and message.topic.endswith(self.full):
            self.refused += 1
            raise FullError(f"{message.topic}: 10000 messages wait for the broker already: this one is refused")
        return super().put(message)


def spec(guest: str, work_units: int) -> GuestSpec:
    program = ProgramSpec(name="eatcpu", work_units=work_units, units_per_iteration=100, seed=1)
    return GuestSpec(guest=guest, run="t", job=1, task=0, program=program, cpu_cores=1.0, memory_mib=10)


@pytest.mark.parametrize("lost", [False, True])
def test_a_full_outbox_neither_ends_an_agent_nor_loses_an_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lost: bool
) -> None:
    async def main() -> None:
        hub, outbox = MemoryHub(), FullOutbox(10_000, 1)
        config = AgentConfig("t", "n1", 1.0, 100, tmp_path, tmp_path / "images", str(tmp_path), serve_images=False)

        def connect(presence: Presence) -> object:
            bus = hub.client("agent", presence)
            bus._outbox = outbox
            return bus

        agent = Agent(config, NullDriver(), connect)
        events: list[GuestReport] = []
        samples: list[Telemetry] = []
        async with (
            hub.client("c") as bus,
            lease_lab(bus, "t", ["n1"], "c", deadlines=PATIENT_DEADLINES) as leased,
        ):
            fleet = leased.fleet
            fleet.on_guest_event = lambda _node, event: events.append(event)

            def sampled(_node: Node, record: Telemetry, _taken_ns: int) -> None:
                samples.append(record)

            fleet.on_telemetry = sampled
            running = asyncio.create_task(agent.run())
            await leased.ready()
            for each in (spec("dfrs-short", 100), spec("dfrs-long", 10**12)):
                await fleet.call(0, Start(spec=each, cap_cores=1.0, verify=False), 60.0)
                if each.guest == "dfrs-short":
                    outbox.full = "/event"
            await asyncio.sleep(60)
            if lost:  # sent events must be sent again, while as many messages wait
                agent._events.ends.lost()
                await asyncio.sleep(60)
            assert not running.done()
            assert outbox.refused > 1
            assert not [event for event in events if event.event == "done"]
            outbox.full = ""
            await asyncio.sleep(60)
            done = {event.guest for event in events if event.event == "done"}
            assert done == {"dfrs-short"}
            there = await ask(fleet, 0, ListGuests(), Guests, 60.0)
            assert [sample.guest for sample in there.guests] == ["dfrs-long"]
            assert samples[-1].refused == outbox.refused
            told = [line for line in caplog.messages if "wait for the broker" in line]
            assert told
            assert len(told) <= 10, "not at every attempt"
            agent.stop()
            await running

    run_in_virtual_time(main())
