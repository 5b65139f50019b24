"""Inventory of a lab from its messages on the bus: nodes, their guests, and the lease."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass

from testbed.bus import topics
from testbed.bus.address import BrokerAddress
from testbed.bus.client import MqttBus
from testbed.bus.messages import BadRecordError, Lease, NodeStatus, decode
from testbed.bus.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Survey:
    """The last record of each kind: presence by node, guests by node if reported, and the lease, if there is one."""

    nodes: dict[str, NodeStatus]
    guests: dict[str, tuple[str, ...]]
    lease: Lease | None


async def survey(address: BrokerAddress, lab: str, wait_s: float) -> Survey:
    """Collect the messages of a lab for `wait_s` wall seconds; nodes are in the order of their names."""
    nodes: dict[str, NodeStatus] = {}
    guests: dict[str, tuple[str, ...]] = {}
    leases: list[Lease] = []

    async def presence(topic: str, payload: bytes) -> None:
        with contextlib.suppress(BadRecordError):
            if payload and (name := topics.node_of(topic)):
                nodes[name] = decode(NodeStatus, payload, topic, any_protocol=True)

    async def sample(topic: str, payload: bytes) -> None:
        with contextlib.suppress(BadRecordError):
            if name := topics.node_of(topic):
                guests[name] = tuple(each.guest for each in decode(Telemetry, payload, topic).guests)

    async def lease(topic: str, payload: bytes) -> None:
        with contextlib.suppress(BadRecordError):
            if payload:
                leases.append(decode(Lease, payload, topic, any_protocol=True))

    async with MqttBus(address, f"inventory-{os.getpid()}", keep_session=False) as bus:
        await bus.subscribe(topics.lease_topic(lab), lease)
        await bus.subscribe(topics.node_topic(lab, topics.ANY, "status"), presence)
        await bus.subscribe(topics.node_topic(lab, topics.ANY, "telemetry"), sample)
        await asyncio.sleep(wait_s)
    return Survey({name: nodes[name] for name in sorted(nodes)}, guests, leases[-1] if leases else None)
