"""`testbed lab`: creates, removes and shows a lab in a box."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from types import FrameType

import click
from rich.console import Console
from rich.table import Table

from testbed.bus.topics import check_name
from testbed.errors import UserError, nearest
from testbed.lab.box.down import list_lab, remove_lab
from testbed.lab.box.state import only_command
from testbed.lab.box.status import LabReport, report
from testbed.lab.box.sweep import known_labs
from testbed.lab.box.up import bring_up
from testbed.lab.box.xen import image
from testbed.lab.boxes import spec_of
from testbed.lab.guest_image.image import build
from testbed.packaged import find_scenario, packaged_scenarios
from testbed.scenario.schema import load_lab


def up(*, scenario: Path, as_json: bool) -> int:
    path = find_scenario(scenario)
    spec = spec_of(load_lab(path))
    _need_root("up")
    started_s = time.monotonic()
    signal.signal(signal.SIGTERM, _interrupt)
    with only_command():
        if any(node.has_hypervisor for node in spec.nodes):
            build(progress=_say)  # the image that guests boot; does nothing if the image exists
        if any(node.is_nested for node in spec.nodes):
            image.build(_say)
        _, made = bring_up(spec, path, _say)
    found = report(spec.lab)
    if as_json:
        click.echo(json.dumps({**found.as_dict(), "made": made}, indent=2))
    else:
        _print(found)
        what = f"{len(made)} parts created" if made else "all parts exist already"
        click.echo(f"lab {spec.lab} is up: {what}, {time.monotonic() - started_s:.1f} s")
    return _told(found)


def down(*, which: str | None, dry_run: bool) -> int:
    _need_root("down")
    name = _which(which)
    if name is None:
        click.echo("no lab: nothing to do")
        return 0
    if dry_run:
        for line in list_lab(name) or [f"lab {name}: nothing to do"]:
            click.echo(line)
        return 0
    started_s = time.monotonic()
    signal.signal(signal.SIGTERM, _interrupt)
    with only_command():
        outcome = remove_lab(name, _say)
    for failure in outcome.failures:
        click.echo(f"not removed: {failure}", err=True)
    if outcome.failures:
        return 1
    gone = f"{len(outcome.removed)} parts removed" if outcome.removed else "nothing to do"
    click.echo(f"lab {name}: {gone}, {time.monotonic() - started_s:.1f} s")
    return 0


def status(*, name: str | None, as_json: bool) -> int:
    _need_root("status")
    found = [report(known) for known in known_labs() if name in {None, known}]
    if as_json:
        click.echo(json.dumps([one.as_dict() for one in found], indent=2))
    else:
        for one in found:
            _print(one)
        if not found:
            click.echo("no lab is up" if name is None else f"no lab {name}")
    return max((_told(one) for one in found), default=0 if name is None else 1)


def _say(line: str) -> None:
    click.echo(line, err=True)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """Treat SIGTERM as Ctrl-C, so that new parts are removed on the way out."""
    raise KeyboardInterrupt


def _need_root(command: str) -> None:
    if os.geteuid() != 0:
        raise UserError(f"testbed lab {command}: needs root, for network namespaces and libvirtd; run it with sudo")


def _which(given: str | None) -> str | None:
    """Return the name of the chosen lab, None if there is no lab at all."""
    known = known_labs()
    if given is None:
        if len(known) > 1:
            raise UserError(f"several labs are up: {', '.join(known)}; say which")
        return known[0] if known else None
    if given.endswith(".toml") or "/" in given or (given not in known and given in packaged_scenarios()):
        return load_lab(find_scenario(given)).lab
    if given not in known and (hint := nearest(given, known)):
        click.echo(f"no lab {given} is known{hint}", err=True)
    return check_name("lab", given)


def _told(found: LabReport) -> int:
    for name in found.missing:
        click.echo(f"missing: {name}", err=True)
    return 1 if found.missing else 0


def _print(found: LabReport) -> None:
    table = Table(
        "node", "driver", "libvirtd", "agent", "address", "CPUs", "memory MiB", "guests", "socket",
        title=f"lab {found.lab}: {found.phase}, broker {found.broker_pid or 'dead'}, cgroups {found.cgroups}",
        header_style="bold", title_justify="left",
    )  # fmt: skip
    for node in found.nodes:
        daemon = "-" if node.libvirtd_answers is None else str(node.libvirtd_pid or "dead")
        if node.machine_pid is not None:
            daemon = f"in machine {node.machine_pid}"
        table.add_row(
            node.node, node.driver, daemon if node.libvirtd_answers in {None, True} else f"{daemon} silent",
            f"{node.agent_pid or 'dead'}{'' if node.agent_online else ' offline'}", node.address, f"{node.cpus:g}",
            str(node.memory_mib),
            "\n".join(f"{g.name} {'-' if g.cap_cores is None else f'{g.cap_cores:.3f}'}" for g in node.domains) or "-",
            node.socket or "-",
        )  # fmt: skip
    console = Console()
    console.print(table) if console.is_terminal else Console(width=200).print(table)
