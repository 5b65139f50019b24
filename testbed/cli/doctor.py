"""`testbed doctor`."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred


@click.command()
@click.argument("names", nargs=-1, metavar="[NODE]…")
@click.option("--folder", type=click.Path(path_type=Path), default=Path(), help="Folder where guests would be saved.")
@click.option("--broker", default=None, help="Also examine the broker at this address.")
@click.option("--influx", "influx_url", default=None, help="Also examine the InfluxDB at http://HOST:PORT.")
@click.option(
    "--hosts", "path", type=click.Path(path_type=Path, dir_okay=False), default=None,
    help="Examine a lab over ssh: all machines of this file, or each NODE, and the network between them.",
)  # fmt: skip
@click.option(
    "--certificates", "certificate_folders", type=click.Path(path_type=Path), multiple=True,
    help="Also report when the certificates in this folder of `testbed ca` expire; may be repeated.",
)  # fmt: skip
@click.option(
    "--lab", default=None, help="Also report suspicious events in this lab, from the broker's log and the runs."
)
@click.option(
    "--broker-log", type=click.Path(path_type=Path, dir_okay=False), default=None,
    help="Log file of the lab's broker.  [default: the journal of mosquitto.service]",
)  # fmt: skip
@click.option(
    "--runs", type=click.Path(path_type=Path, file_okay=False), default=Path("runs"), show_default=True,
    help="Folder of the lab's runs.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@deferred
def doctor() -> None:
    """Examine this machine, a node or a whole lab: report each problem and how to fix it.

    Exit code 0: no problem, at most notes; 1: a warning; 2: an error, or a mistake in the options.

    \b
    Examples:
      testbed doctor
      testbed doctor --folder /var/lib/dfrs-testbed --broker mqtts://head:8884 --json
      testbed doctor --hosts hosts.toml --certificates certificates
      testbed doctor --lab lab-1 --broker-log /var/log/mosquitto/mosquitto.log
    """  # noqa: D301  # \b keeps click from wrapping the examples
