"""Checks whether a controller holds a lab's lease, and so may still need the leftovers of an agent."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from testbed.bus import topics
from testbed.bus.address import BrokerAddress
from testbed.bus.client import MqttBus
from testbed.bus.lease import LeaseGuard
from testbed.bus.protocol import BusError
from testbed.errors import UserError
from testbed.host.agents import Claim

_CONNECT_S = 3.0
_LISTEN_S = 1.0


async def held_by(claim: Claim) -> str:
    """Return why a dead agent's leftovers must stay: the lab's lease is held or unknown; else an empty string.

    A broker whose port is closed has ended, and so have all of its leases. A broker that does not answer may be
    unreachable only from this machine, and still serve a controller.
    """
    try:
        address = BrokerAddress.parse(claim.broker, Path(claim.tls_dir) if claim.tls_dir else None)
    except UserError as error:
        return f"the controller of lab {claim.lab} is unknown: {error}"
    try:
        (await asyncio.to_thread(socket.create_connection, (address.host, address.port), _CONNECT_S)).close()
    except ConnectionRefusedError:
        return ""
    except OSError as error:
        return f"the controller of lab {claim.lab} is unknown: broker {address}: {error.strerror or error}"
    guard = LeaseGuard(asyncio.get_running_loop().time)

    async def hear(topic: str, payload: bytes) -> None:
        guard.hear(topic, payload)

    try:
        # under the dead agent's client id, as its certificate is permitted to read the lease
        async with MqttBus(address, f"agent-{claim.lab}-{claim.node}", keep_session=False) as bus:
            await bus.subscribe(topics.lease_topic(claim.lab), hear)
            await asyncio.sleep(_LISTEN_S)  # no broker reports the absence of a retained record
    except (BusError, UserError) as error:
        return f"the controller of lab {claim.lab} is unknown: {error}"
    return f"{guard.lease.holder} drives lab {claim.lab}" if guard.lease else ""
