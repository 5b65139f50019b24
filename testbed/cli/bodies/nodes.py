"""`testbed nodes`: lists the nodes of a lab at a broker."""

from __future__ import annotations

import asyncio
import json

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from testbed.bus.address import BrokerAddress
from testbed.errors import printable
from testbed.lab.inventory import survey


def nodes(*, broker: str, lab: str, wait_s: float, as_json: bool) -> int:
    def told(text: str) -> Text:
        return Text(printable(text))  # text of a node must not be read as markup

    found = list(asyncio.run(survey(BrokerAddress.parse(broker), lab, wait_s)).nodes.values())
    if as_json:
        click.echo(json.dumps([msgspec.to_builtins(status) for status in found], indent=2))
        return 0 if found else 1
    table = Table("node", "state", "driver", "CPUs", "memory MiB", "can", "kernel", "processor", header_style="bold")
    for status in found:
        facts = status.facts
        if facts is None:
            table.add_row(told(status.node), told(f"offline: {status.reason}"), *["-"] * 6)
        else:
            table.add_row(
                told(status.node), "online", told(facts.driver), f"{facts.cpus:g} of {facts.machine_cores}",
                f"{facts.memory_mib} of {facts.machine_memory_mib}", told(" ".join(facts.capabilities)),
                told(facts.kernel), told(facts.cpu_model),
            )  # fmt: skip
    Console().print(table)
    if not found:
        click.echo(f"no node has announced itself in lab {lab!r} within {wait_s:g} s", err=True)
    return 0 if found else 1
