"""`testbed node`: operations on the machines of a lab, over ssh."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from testbed.bus.drivers import traits_of
from testbed.errors import UserError, printable, printable_lines
from testbed.lab.guest_image.image import current
from testbed.lab.remote import agents
from testbed.lab.remote.everywhere import Outcome, everywhere
from testbed.lab.remote.hosts import Host, Hosts, check_hosts, load_hosts, read_hosts, save_hosts
from testbed.lab.remote.shell import Shell
from testbed.lab.remote.unit import unit as unit_of


def add(
    *, name: str, target: str, path: Path, lab: str | None, broker: str | None, port: int, address: str | None,
    cpus: float, memory_mib: int, image_budget_mib: int, driver: str, options: tuple[str, ...],
    agent_memory_mib: int, home: str, service: str, package: str, certificates: Path | None,
    known_hosts: Path | None, identity: Path | None,
) -> int:  # fmt: skip
    before: dict[str, Any] = load_hosts(path).model_dump(mode="json", exclude_defaults=True) if path.exists() else {}
    told = {
        "lab": lab, "broker": broker, "known_hosts": known_hosts and str(known_hosts),
        "identity": identity and str(identity),
    }  # fmt: skip
    if wrong := next((each for each in options if "=" not in each), None):
        raise UserError(f"--option {wrong!r}: expected NAME=VALUE")
    host = {
        "name": name, "ssh": target, "port": port, "address": address or target.rpartition("@")[2], "cpus": cpus,
        "memory_mib": memory_mib, "image_budget_mib": image_budget_mib, "driver": driver, "home": home,
        "service": service, "agent_memory_mib": agent_memory_mib,
        "options": dict(each.split("=", 1) for each in options),
    }  # fmt: skip
    others = [each for each in before.get("hosts", ()) if each["name"] != name]
    data = {**before, **{key: value for key, value in told.items() if value is not None}, "hosts": [*others, host]}
    for key in ("lab", "broker"):
        if key not in data:
            raise UserError(f"--{key}: expected for the first machine of a lab")
    hosts = check_hosts(data, path)

    def say(which: Host, line: str) -> None:
        click.echo(f"{which.name}: {line}", err=True)

    code = _everywhere(
        hosts, (name,), agents.install(hosts, hosts.choose((name,)), package, certificates, say), as_json=False
    )
    if code == 0:
        save_hosts(hosts, path)
    return code


def unit(*, name: str, path: Path) -> int:
    hosts, host = _one(name, path)
    click.echo(unit_of(hosts.lab, hosts.broker, host), nl=False)
    return 0


def extra(*, name: str, path: Path) -> int:
    _, host = _one(name, path)
    click.echo(traits_of(host.driver).extra)
    return 0


def _one(name: str, path: Path) -> tuple[Hosts, Host]:
    """Return the machines of a hosts file, or of standard input for `-`, and the machine with this name."""
    hosts = read_hosts(sys.stdin.read(), path) if path == Path("-") else load_hosts(path)
    (host,) = hosts.choose((name,))
    return hosts, host


def logs(*, names: tuple[str, ...], path: Path, lines: int, as_json: bool) -> int:
    return on_machines(path, names, agents.logs(lines), as_json=as_json)


def restart(*, names: tuple[str, ...], path: Path, as_json: bool) -> int:
    return on_machines(path, names, agents.restart, as_json=as_json)


def exec_check(*, names: tuple[str, ...], path: Path, as_json: bool) -> int:
    worst = 0

    def act(shell: Shell) -> Any:
        return msgspec.to_builtins(agents.exec_check(shell))

    def show(outcome: Outcome[Any]) -> None:
        nonlocal worst
        told: dict[str, Any] = outcome.value or {}
        findings = [each for each in told["findings"] if each["severity"] in {"warning", "error"}]
        worst = max(worst, 1 if findings else 0)
        click.echo(f"{outcome.host.name}: {told['worst']}")
        for each in findings:
            mend = f"; fix: {each['mend']}" if each["mend"] else ""
            text = printable(f"{each['check']}: {each['found']}{mend}")
            click.echo(f"  {each['severity']}: {text}")

    return max(on_machines(path, names, act, as_json=as_json, show=show), worst)


def push_image(*, names: tuple[str, ...], path: Path, folder: Path | None, as_json: bool) -> int:
    return on_machines(path, names, agents.push_image(folder or current().folder), as_json=as_json)


def on_machines(
    path: Path, names: tuple[str, ...], act: Callable[[Shell], Any], *, as_json: bool,
    show: Callable[[Outcome[Any]], None] | None = None,
) -> int:  # fmt: skip
    """Act on the named machines of a hosts file, or on all, and print the results; return 1 if one failed, else 0."""
    return _everywhere(load_hosts(path), names, act, as_json=as_json, show=show)


def _everywhere(
    hosts: Hosts, names: tuple[str, ...], act: Callable[[Shell], Any], *, as_json: bool,
    show: Callable[[Outcome[Any]], None] | None = None,
) -> int:  # fmt: skip
    """Act on the chosen machines, and print the results; return 1 if one failed, else 0."""
    chosen = hosts.choose(names)
    left = {host.name for host in chosen}

    def done(outcome: Outcome[Any]) -> None:
        left.discard(outcome.host.name)
        if len(chosen) > 1:
            click.echo(f"{len(chosen) - len(left)}/{len(chosen)} {outcome.host.name}", err=True)

    outcomes = everywhere(hosts, chosen, act, done)
    if as_json:
        click.echo(json.dumps(
            [{"node": each.host.name, "value": each.value, "error": each.error or None} for each in outcomes], indent=2
        ))  # fmt: skip
    for each in outcomes:
        if each.error:
            click.echo(f"failed: {each.error}", err=True)
        elif show is not None and not as_json:
            show(each)
        elif not as_json:
            for line in printable_lines(str(each.value).rstrip() or "(nothing)").split("\n"):
                click.echo(f"{each.host.name}: {line}")
    return 1 if any(each.error for each in outcomes) else 0
