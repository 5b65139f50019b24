"""Ends a revoked node's open connection to the broker, and publishes that the node is gone.

The broker checks certificates only when a connection begins. A new connection under a client's name ends the old one.
So the owner of the lab opens such a connection, with a certificate of the node's name that is used only for this.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from testbed import __version__
from testbed.bus import topics
from testbed.bus.address import BrokerAddress
from testbed.bus.client import MqttBus
from testbed.bus.messages import NodeStatus, encode
from testbed.bus.protocol import BusError, Presence
from testbed.errors import UserError

if TYPE_CHECKING:
    from testbed.lab.secure.authority import Authority

_READS_WITHIN_S = 10.0  # ample: a broker reads its lists at once after a reload signal
_AGAIN_S = 0.2


def say_farewell(authority: Authority, broker_url: str, name: str) -> str:
    """End a node's connection once the broker has read its revocation; return the error, or an empty string.

    The broker's access rules must let the node write its status. Afterwards the caller must revoke the certificate that
    was used here as well, with or without success.
    """
    own = authority.folder / "nodes" / name
    try:
        address = BrokerAddress.parse(broker_url, own)
        if not address.tls:
            return f"broker {address}: expected mqtts://, which certificates require"
        return asyncio.run(_end(authority, address, name))
    except (UserError, BusError, OSError) as error:
        return str(error)


async def _end(authority: Authority, address: BrokerAddress, name: str) -> str:
    ends_s = time.monotonic() + _READS_WITHIN_S
    while await _lets_in(address):  # with the revoked certificate
        if time.monotonic() > ends_s:
            return f"broker {address}: it still accepts {name}: has it read the revocation list?"
        await asyncio.sleep(_AGAIN_S)
    topic = topics.node_topic(authority.lab, name, "status")
    gone = encode(
        NodeStatus(node=name, online=False, reason="its certificate was revoked", left=True, release=__version__)
    )
    with tempfile.TemporaryDirectory(prefix="dfrs-farewell-") as folder:
        authority.stand_in(name, Path(folder))
        there = replace(address, tls_dir=Path(folder))
        presence = Presence(topic, lambda: gone, gone, gone)
        async with MqttBus(there, f"farewell-{name}", presence, keep_session=False):
            return ""


async def _lets_in(address: BrokerAddress) -> bool:
    try:
        async with MqttBus(address, "farewell", keep_session=False):
            return True
    except BusError:
        return False
