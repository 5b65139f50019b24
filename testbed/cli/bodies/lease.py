"""`testbed lab who` and `testbed lab take`: the controller that drives a lab."""

from __future__ import annotations

import asyncio
import json
import time

import click

from testbed.bus.address import BrokerAddress
from testbed.bus.topics import check_name
from testbed.errors import UserError
from testbed.lab import takeover
from testbed.lab.box.state import find
from testbed.lab.box.sweep import known_labs
from testbed.lab.inventory import Survey, survey
from testbed.packaged import find_scenario, packaged_scenarios
from testbed.scenario.schema import load_lab

_TOLD = ("holder", "since_unix_s", "on_controller_loss")
_LISTEN_S = 1.5  # agents report their guests once a second


def who(*, which: str | None, broker: str | None, as_json: bool) -> int:
    address, lab = find_broker(which, broker)
    found = asyncio.run(survey(address, lab, _LISTEN_S))
    lease = found.lease
    left_s = 0.0 if lease is None or lease.released else max(0.0, lease.expires_unix_s - time.time())
    if as_json:
        told = {name: getattr(lease, name) for name in _TOLD} if lease else {}
        click.echo(
            json.dumps({"lab": lab, "held": left_s > 0, "left_s": left_s, **told, "nodes": _nodes(found)}, indent=2)
        )
        return 0 if left_s > 0 else 1
    if lease is None:
        click.echo(f"lab {lab}: no controller has driven it yet")
    elif left_s > 0:
        held_s = time.time() - lease.since_unix_s
        click.echo(f"lab {lab}: {lease.holder}, for {held_s:.0f} s; ends in {left_s:.0f} s unless renewed")
    else:
        how = (
            f"was ended by {lease.released_by}"
            if lease.released_by
            else ("was released" if lease.released else "expired")
        )
        click.echo(f"lab {lab}: no controller; the lease of {lease.holder} {how}")
    for name, status in found.nodes.items():
        state = "online" if status.online else f"offline: {status.reason}"
        click.echo(f"  {name}: {state}, guests: {', '.join(found.guests.get(name, ())) or '-'}")
    return 0 if left_s > 0 else 1


def take(*, which: str | None, broker: str | None, force: bool, as_json: bool) -> int:
    address, lab = find_broker(which, broker)

    async def work() -> takeover.Taken:
        found = await survey(address, lab, _LISTEN_S)
        return await takeover.take(address, lab, found, force=force, say=lambda line: click.echo(line, err=True))

    taken = asyncio.run(work())
    if as_json:
        click.echo(json.dumps({"lab": lab, "removed": taken.removed, "failures": taken.failures}, indent=2))
    else:
        count = sum(map(len, taken.removed.values()))
        click.echo(
            f"lab {lab} is free: {count} guests removed" if not taken.failures else f"lab {lab}: not all is gone"
        )
    for failure in taken.failures:
        click.echo(f"not removed: {failure}", err=True)
    return 1 if taken.failures else 0


def _nodes(found: Survey) -> list[dict[str, object]]:
    return [
        {"node": name, "online": status.online, "reason": status.reason, "guests": list(found.guests.get(name, ()))}
        for name, status in found.nodes.items()
    ]


def find_broker(which: str | None, broker: str | None) -> tuple[BrokerAddress, str]:
    """Return the broker of a lab and the lab's name.

    `which` is the name of a lab, a scenario file, or None for the only lab in a box on this machine. Without `broker`
    it can also be the name of a packaged scenario, unless a lab has this name.
    """
    by_name = broker is None and which not in known_labs() and which in packaged_scenarios()
    if which is not None and (by_name or which.endswith(".toml") or "/" in which):
        scenario = load_lab(find_scenario(which))
        lab = scenario.lab
        if broker is None and scenario.broker.kind is None:
            return BrokerAddress.parse(scenario.broker.address, scenario.broker.tls_dir), lab
    elif which is None and broker is None:
        known = known_labs()
        if len(known) != 1:
            what = f"several labs are up: {', '.join(known)}" if known else "no lab in a box is up here"
            raise UserError(f"{what}: say which, or --broker")
        lab = known[0]
    else:
        lab = check_name("lab", which or "local")
    if broker is not None:
        return BrokerAddress.parse(broker), lab
    state = find(lab)
    if state is None or not state.broker_url:
        raise UserError(f"lab {lab}: not one in a box on this machine; say where its broker is with --broker")
    return BrokerAddress.parse(state.broker_url), lab
