"""`testbed lab`: the lab in a box."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from testbed.cli.lease import take, who
from testbed.errors import UserError, nearest

if TYPE_CHECKING:
    from testbed.lab.box.status import LabReport


@click.group()
def lab() -> None:
    """Make several independent nodes on this machine: each its own libvirtd, network, capacity and agent. Needs root.

    \b
    Example:
      testbed lab up kvm-two-nodes
      testbed lab status
      testbed run kvm-two-nodes
      testbed lab down
    """  # noqa: D301  # \b keeps click from wrapping the example


@lab.command()
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the lab as JSON on standard output.")
def up(*, scenario: Path, as_json: bool) -> int:
    """Make the lab of SCENARIO, which has a [box] table; make again what has died of it if it is there.

    SCENARIO is a path, or the name of a packaged scenario (`testbed run --list`), such as kvm-two-nodes.
    A lab that cannot be made whole is removed again. Exit code 0: everything is there, every libvirtd answers, every
    agent is online; 1: not so; 2: something in the input is wrong, or not root; 130: interrupted.
    """
    import json  # noqa: PLC0415  # --help stays quick

    from testbed.lab.box.state import only_command  # noqa: PLC0415  # as above
    from testbed.lab.box.status import report  # noqa: PLC0415  # as above
    from testbed.lab.box.up import bring_up  # noqa: PLC0415  # as above
    from testbed.lab.boxes import spec_of  # noqa: PLC0415  # as above
    from testbed.packaged import find_scenario  # noqa: PLC0415  # as above
    from testbed.scenario.schema import load_lab  # noqa: PLC0415  # as above

    path = find_scenario(scenario)
    spec = spec_of(load_lab(path))
    _need_root("up")
    started_s = time.monotonic()
    signal.signal(signal.SIGTERM, _interrupt)
    with only_command():
        if any(node.has_hypervisor for node in spec.nodes):
            from testbed.lab.guest_image.image import build  # noqa: PLC0415  # as above

            build(progress=_say)  # what its guests boot; nothing to do when it is there
        if any(node.is_nested for node in spec.nodes):
            from testbed.lab.box.xen import image  # noqa: PLC0415  # as above

            image.build(_say)
        _, made = bring_up(spec, path, _say)
    found = report(spec.lab)
    if as_json:
        click.echo(json.dumps({**found.as_dict(), "made": made}, indent=2))
    else:
        _print(found)
        what = f"{len(made)} parts made" if made else "everything was there"
        click.echo(f"lab {spec.lab} is up: {what}, {time.monotonic() - started_s:.1f} s")
    return _told(found)


@lab.command()
@click.argument("which", metavar="[NAME|SCENARIO]", required=False)
@click.option("--dry-run", is_flag=True, help="List what would be removed.")
def down(*, which: str | None, dry_run: bool) -> int:
    """Remove a lab with everything in it, saved guests included: by name, by scenario (file or name), or the only one.

    It finds what carries the lab's name, also of a lab that was made half or whose state is lost. Exit code 1 if
    something is left.
    """
    from testbed.lab.box.down import list_lab, remove_lab  # noqa: PLC0415  # --help stays quick
    from testbed.lab.box.state import only_command  # noqa: PLC0415  # as above

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


@lab.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(*, name: str | None, as_json: bool) -> int:
    """Show the lab NAME, or all on this machine. Exit code 1 if a part of one is missing, or there is none of NAME."""
    import json  # noqa: PLC0415  # --help stays quick

    from testbed.lab.box.status import report  # noqa: PLC0415  # as above
    from testbed.lab.box.sweep import known_labs  # noqa: PLC0415  # as above

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


lab.add_command(who)
lab.add_command(take)


def _say(line: str) -> None:
    click.echo(line, err=True)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """SIGTERM is as Ctrl-C: what was made is removed on the way out."""
    raise KeyboardInterrupt


def _need_root(command: str) -> None:
    if os.geteuid() != 0:
        raise UserError(f"testbed lab {command}: needs root, for network namespaces and libvirtd; run it with sudo")


def _which(given: str | None) -> str | None:
    """Return the name of the lab that is meant, None if there is none at all."""
    from testbed.bus.topics import check_name  # noqa: PLC0415  # as above
    from testbed.lab.box.sweep import known_labs  # noqa: PLC0415  # --help stays quick
    from testbed.packaged import find_scenario, packaged_scenarios  # noqa: PLC0415  # as above
    from testbed.scenario.schema import load_lab  # noqa: PLC0415  # as above

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
    from rich.console import Console  # noqa: PLC0415  # --help stays quick
    from rich.table import Table  # noqa: PLC0415  # as above

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
