"""Which nodes a lab has, asked of the bus alone."""

from __future__ import annotations

import asyncio
import os

from testbed.bus import topics
from testbed.bus.address import BrokerAddress
from testbed.bus.client import MqttBus
from testbed.bus.messages import NodeStatus, decode


async def listen(broker: str, lab: str, wait_s: float) -> list[NodeStatus]:
    """Return the retained status of every node of the lab, by name, after listening for `wait_s` wall seconds."""
    found: dict[str, NodeStatus] = {}

    async def hear(topic: str, payload: bytes) -> None:
        if payload:
            status = decode(NodeStatus, payload, topic)
            found[status.node] = status

    pattern = topics.node_topic(lab, topics.ANY, "status")
    async with MqttBus(BrokerAddress.parse(broker), f"inventory-{os.getpid()}", keep_session=False) as bus:
        await bus.subscribe(pattern, hear)
        await asyncio.sleep(wait_s)
    return [found[name] for name in sorted(found)]
