"""`testbed doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from testbed.errors import printable

if TYPE_CHECKING:
    from rich.console import Console

    from testbed.lab.doctor.finding import Finding


@click.command()
@click.argument("names", nargs=-1, metavar="[NODE]…")
@click.option("--folder", type=click.Path(path_type=Path), default=Path(), help="Where guests would be saved.")
@click.option("--broker", default=None, help="Also try this broker.")
@click.option("--influx", "influx_url", default=None, help="Also try this database, http://HOST:PORT.")
@click.option(
    "--hosts", "path", type=click.Path(path_type=Path, dir_okay=False), default=None,
    help="Examine a lab over ssh: all machines of this file, or each NODE, and what is between them.",
)  # fmt: skip
@click.option(
    "--certificates", "certificate_folders", type=click.Path(path_type=Path), multiple=True,
    help="Also look when certificates in this folder of `testbed ca` end; may be repeated.",
)  # fmt: skip
@click.option("--lab", default=None, help="Also report suspicious acts in this lab: by its broker's log, and its runs.")
@click.option(
    "--broker-log", type=click.Path(path_type=Path, dir_okay=False), default=None,
    help="Log of the lab's broker.  [default: the journal of mosquitto.service]",
)  # fmt: skip
@click.option(
    "--runs", type=click.Path(path_type=Path, file_okay=False), default=Path("runs"), show_default=True,
    help="Folder of the lab's runs.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(
    *, names: tuple[str, ...], folder: Path, broker: str | None, influx_url: str | None, path: Path | None,
    certificate_folders: tuple[Path, ...], lab: str | None, broker_log: Path | None, runs: Path, as_json: bool,
) -> int:  # fmt: skip
    """Say what is wrong with this machine, a node or a whole lab, and how to mend it.

    Exit code 0 if nothing is, notes apart; 1 with a warning; 2 with an error, or for a mistake in the options.

    \b
    Examples:
      testbed doctor
      testbed doctor --folder /var/lib/dfrs-testbed --broker mqtts://head:8884 --json
      testbed doctor --hosts hosts.toml --certificates certificates
      testbed doctor --lab lab-1 --broker-log /var/log/mosquitto/mosquitto.log
    """  # noqa: D301  # \b keeps click from wrapping the examples
    import json  # noqa: PLC0415  # --help stays quick
    from dataclasses import asdict  # noqa: PLC0415  # as above

    from rich.console import Console  # noqa: PLC0415  # as above

    from testbed.bus.address import BrokerAddress  # noqa: PLC0415  # as above
    from testbed.lab.doctor.certificates import certificates  # noqa: PLC0415  # as above
    from testbed.lab.doctor.examine import examine, examine_lab_here, examine_services  # noqa: PLC0415  # as above
    from testbed.lab.doctor.finding import worst  # noqa: PLC0415  # as above
    from testbed.measure.influx_address import bare_url, is_url  # noqa: PLC0415  # as above

    influx_url = influx_url and bare_url(influx_url)  # it is asked for its health alone, without a token
    if influx_url is not None and not is_url(influx_url):
        raise click.BadParameter(f"{influx_url!r}: expected http://HOST:PORT", param_hint="--influx")
    if broker_log is not None and lab is None:
        raise click.BadParameter("a log is read for one lab: expected --lab, too", param_hint="--broker-log")
    address = None if broker is None else BrokerAddress.parse(broker)
    with Console(stderr=True).status("looking") as spinner:

        def say(what: str) -> None:
            spinner.update(f"looking at {what}")

        if path is not None or names:
            from testbed.lab.doctor.lab import examine_lab  # noqa: PLC0415  # needs an extra
            from testbed.lab.remote.hosts import DEFAULT_FILE, load_hosts  # noqa: PLC0415  # --help stays quick

            hosts = load_hosts(path or DEFAULT_FILE)
            found = list(examine_lab(hosts, hosts.choose(names), say))
            found += [("", each) for each in examine_services(address, influx_url, say)]
            if certificate_folders:
                found += [("", each) for each in certificates(certificate_folders)]
        else:
            found = [("", each) for each in examine(folder, address, influx_url, say, certificate_folders)]
        if lab is not None:
            found += [("", each) for each in examine_lab_here(lab, broker_log, runs, say)]
    severity = worst(each for _, each in found)
    if as_json:
        told = [{**({"node": name} if name else {}), **asdict(each)} for name, each in found]
        click.echo(json.dumps({"worst": severity, "findings": told}, indent=2))
    else:
        _print_by_machine(Console(), found, several=path is not None or bool(names))
    return {"ok": 0, "note": 0, "warning": 1, "error": 2}[severity]


def _print_by_machine(console: Console, found: list[tuple[str, Finding]], *, several: bool) -> None:
    for name in dict.fromkeys(name for name, _ in found):
        if name:
            click.echo(f"{name}:")
        elif several:
            click.echo("between them:")
        _print(console, [each for whose, each in found if whose == name])


def _print(console: Console, found: list[Finding]) -> None:
    from rich.text import Text  # noqa: PLC0415  # --help stays quick

    style = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}
    checks = [printable(each.check) for each in found]
    width = max(map(len, checks))
    for each, check in zip(found, checks, strict=True):  # what nodes, logs and runs say is no markup of ours
        line = Text(f"{each.severity:8}", style=style[each.severity])
        line.append(f" {check:{width}}  {printable(each.found)}", style="")
        console.print(line, highlight=False, soft_wrap=True)
        if each.mend:
            mend = Text(f"{'':8} {'':{width}}  mend: {printable(each.mend)}")
            console.print(mend, highlight=False, soft_wrap=True)
