"""`testbed nodes`."""

from __future__ import annotations

import click

from testbed.errors import printable


@click.command()
@click.option("--broker", default="mqtt://127.0.0.1:1883", help="Address of the message broker.")
@click.option("--lab", default="local", help="Name of the lab.")
@click.option("--wait-s", type=click.FloatRange(min=0.1, max=60), default=1.5, help="How long to listen.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def nodes(*, broker: str, lab: str, wait_s: float, as_json: bool) -> int:
    """List the nodes that have announced themselves in a lab. Exit code 1 when there is none.

    \b
    Example:
      testbed nodes --broker mqtt://127.0.0.1:1883 --lab local
    """  # noqa: D301  # \b keeps click from wrapping the example
    import asyncio  # noqa: PLC0415  # --help stays quick
    import json  # noqa: PLC0415  # --help stays quick

    import msgspec  # noqa: PLC0415  # --help stays quick
    from rich.console import Console  # noqa: PLC0415  # --help stays quick
    from rich.table import Table  # noqa: PLC0415  # --help stays quick
    from rich.text import Text  # noqa: PLC0415  # --help stays quick

    from testbed.bus.address import BrokerAddress  # noqa: PLC0415  # --help stays quick
    from testbed.lab.inventory import survey  # noqa: PLC0415  # --help stays quick

    def told(text: str) -> Text:
        return Text(printable(text))  # a node's words are no markup of ours

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
