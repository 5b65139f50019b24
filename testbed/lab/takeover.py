"""Takeover of a lab: ends a controller's lease, and removes the guests left on its nodes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass

from testbed.bus.address import BrokerAddress
from testbed.bus.certificate import own_name
from testbed.bus.client import MqttBus
from testbed.bus.messages import DropImage, ListGuests, Stop
from testbed.bus.requests import CommandError
from testbed.errors import TestbedError
from testbed.lab.fleet import Fleet
from testbed.lab.inventory import Survey
from testbed.lab.leased import lease_lab
from testbed.lab.replies import Guests, ask
from testbed.scenario.schema import DeadlinesTable

_DEADLINES = DeadlinesTable(lease_ttl_s=15.0)
_CALL_S = 30.0
_ROUNDS = 20
_AGAIN_S = 0.5


@dataclass(frozen=True, slots=True)
class Taken:
    """The result of a takeover: removed guests by node, and descriptions of failures."""

    removed: dict[str, tuple[str, ...]]
    failures: tuple[str, ...]


async def take(address: BrokerAddress, lab: str, found: Survey, *, force: bool, say: Callable[[str], None]) -> Taken:
    """End the lease of a lab, remove every guest and image of its online nodes, and release the lab.

    Raises `UserError` while a controller drives the lab, unless `force`.
    """
    client, party = f"takeover-{os.getpid()}", own_name(address.tls_dir)
    online = [name for name, status in found.nodes.items() if status.online]
    async with (
        MqttBus(address, client, keep_session=False) as bus,
        lease_lab(bus, lab, online, client, deadlines=_DEADLINES, force=force, party=party) as leased,
    ):
        outcomes = await asyncio.gather(*(_clear(leased.fleet, node.index, say) for node in leased.fleet.nodes))
    removed = {name: tuple(sorted(gone)) for name, (gone, _) in zip(online, outcomes, strict=True) if gone}
    return Taken(removed, tuple(why for _, why in outcomes if why))


async def _clear(fleet: Fleet, node: int, say: Callable[[str], None]) -> tuple[set[str], str]:
    """Stop the guests of a node until it has none, and delete its images; some guests may be ending already."""
    gone: set[str] = set()
    name, why = fleet.name(node), ""
    for _ in range(_ROUNDS):
        try:
            found = await ask(fleet, node, ListGuests(), Guests, _CALL_S)
            there = {sample.guest for sample in found.guests}
            for image in found.images:
                await fleet.call(node, DropImage(image=image), _CALL_S)
        except TestbedError as error:
            return gone, str(error)
        if not there:
            return gone, ""
        for guest in sorted(there - gone):
            say(f"{name}: removing {guest}")
        gone |= there
        for guest in sorted(there):
            try:
                await fleet.call(node, Stop(guest=guest), _CALL_S)
            except CommandError as error:
                why = str(error)
        await asyncio.sleep(_AGAIN_S)
    return gone, why or f"{name}: guests are still there"
