"""Queries a lab's broker for the agents that are online."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Collection

from testbed.bus import topics
from testbed.bus.address import BrokerAddress
from testbed.bus.client import MqttBus
from testbed.bus.messages import NodeStatus, decode

_LOOK_EVERY_S = 0.2


async def agents_online(
    url: str, lab: str, nodes: Collection[str], timeout_s: float, go_on: Callable[[], bool] = lambda: True
) -> dict[str, NodeStatus]:
    """Return the status of online agents by node, once all `nodes` are online.

    The wait ends earlier after `timeout_s`, or when `go_on` returns false. Raises `BusError` when the broker does not
    answer.
    """
    found: dict[str, NodeStatus] = {}
    complete = asyncio.Event()

    async def hear(topic: str, payload: bytes) -> None:
        status = decode(NodeStatus, payload, topic) if payload else None
        if status is not None and status.online:
            found[status.node] = status
        else:
            found.pop(topics.node_of(topic) or "", None)
        if found.keys() >= set(nodes):
            complete.set()

    async with MqttBus(BrokerAddress.parse(url), f"box-{lab}-{os.getpid()}", keep_session=False) as bus:
        await bus.subscribe(topics.node_topic(lab, topics.ANY, "status"), hear)
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        while not complete.is_set() and go_on() and loop.time() < end_s:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await complete.wait()
    return found
