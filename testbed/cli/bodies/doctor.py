"""`testbed doctor`: checks of this machine, of the machines of a lab, and of services."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from testbed.bus.address import BrokerAddress
from testbed.errors import printable
from testbed.lab.doctor.certificates import certificates
from testbed.lab.doctor.examine import examine, examine_lab_here, examine_services
from testbed.lab.doctor.finding import Finding, worst
from testbed.lab.doctor.lab import examine_lab
from testbed.lab.remote.hosts import DEFAULT_FILE, load_hosts
from testbed.measure.influx_address import bare_url, is_url


def doctor(
    *, names: tuple[str, ...], folder: Path, broker: str | None, influx_url: str | None, path: Path | None,
    certificate_folders: tuple[Path, ...], lab: str | None, broker_log: Path | None, runs: Path, as_json: bool,
) -> int:  # fmt: skip
    influx_url = influx_url and bare_url(influx_url)  # plain HTTP is fine: the health check sends no token
    if influx_url is not None and not is_url(influx_url):
        raise click.BadParameter(f"{influx_url!r}: expected http://HOST:PORT", param_hint="--influx")
    if broker_log is not None and lab is None:
        raise click.BadParameter("a log is read for one lab: expected --lab, too", param_hint="--broker-log")
    address = None if broker is None else BrokerAddress.parse(broker)
    with Console(stderr=True).status("checking") as spinner:

        def say(what: str) -> None:
            spinner.update(f"checking {what}")

        if path is not None or names:
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
    style = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}
    checks = [printable(each.check) for each in found]
    width = max(map(len, checks))
    for each, check in zip(found, checks, strict=True):  # text of nodes, logs and runs must not be read as markup
        line = Text(f"{each.severity:8}", style=style[each.severity])
        line.append(f" {check:{width}}  {printable(each.found)}", style="")
        console.print(line, highlight=False, soft_wrap=True)
        if each.mend:
            mend = Text(f"{'':8} {'':{width}}  fix: {printable(each.mend)}")
            console.print(mend, highlight=False, soft_wrap=True)
