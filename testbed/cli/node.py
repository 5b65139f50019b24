"""`testbed node`: operations on the machines of a lab, over ssh."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from testbed.cli.control import drain, return_
from testbed.errors import UserError, printable, printable_lines

if TYPE_CHECKING:
    from testbed.lab.remote.everywhere import Outcome
    from testbed.lab.remote.hosts import Host, Hosts
    from testbed.lab.remote.shell import Shell

_FILE = click.option(
    "--hosts", "path", type=click.Path(path_type=Path, dir_okay=False), default=Path("hosts.toml"),
    help="The lab's machines; `testbed node add` writes it.",
)  # fmt: skip
_NAMES = click.argument("names", nargs=-1, metavar="[NODE]…")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")


@click.group()
def node() -> None:
    """Look after the machines of a lab over ssh: without NODE on all of them at once. Needs the extra `remote`.

    drain and return are orders to a run that goes on, on this machine, and need no extra.

    A machine's key must be known to ssh, and we log in with a key or an agent of ssh: nothing is asked for.

    \b
    Examples:
      testbed node add n1 root@192.0.2.11 --lab lab-1 --broker mqtts://192.0.2.1:8883 --cpus 8 --memory-mib 32000 \\
          --package dfrs_testbed-0.1.0-py3-none-any.whl --certificates certificates
      testbed node logs n1
      testbed node restart n1 n2
      testbed node exec-check --json
      testbed node push-image
      testbed node drain node-a
    """  # noqa: D301  # \b keeps click from wrapping the examples


node.add_command(drain)
node.add_command(return_)


@node.command()
@click.argument("name")
@click.argument("target", metavar="USER@HOST")
@_FILE
@click.option("--lab", default=None, help="Name of the lab; needed for its first machine.")
@click.option("--broker", default=None, help="Where the broker lets agents in; needed for the first machine.")
@click.option("--port", type=click.IntRange(1, 65535), default=22, help="Of its sshd.")
@click.option("--address", default=None, help="Address at which other nodes reach it.  [default: that of ssh]")
@click.option("--cpus", type=float, required=True, help="CPU budget of the node, in cores.")
@click.option("--memory-mib", type=int, required=True, help="Memory budget of the node, in MiB.")
@click.option(
    "--image-budget-mib", type=click.IntRange(min=0), default=0, help="Room of all images there; 0: the disk's."
)
@click.option("--driver", default="process", help="What guests are: process, libvirt, docker or a plug-in.")
@click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="Of the driver, such as bridge=dfrs0.")
@click.option(
    "--agent-memory-mib", type=click.IntRange(min=0), default=512, help="Most memory of the agent itself; 0: no bound."
)
@click.option("--home", default="/opt/dfrs-testbed", help="Folder of the agent there.")
@click.option("--service", type=click.Choice(["systemd", "script"]), default="systemd", help="What keeps it running.")
@click.option("--package", required=True, help="The wheel that is installed there, as you have built it here.")
@click.option("--certificates", type=click.Path(path_type=Path), default=None, help="Folder of `testbed ca`.")
@click.option(
    "--known-hosts", type=click.Path(path_type=Path), default=None, help="Keys of machines, if not ssh's own."
)
@click.option("--identity", type=click.Path(path_type=Path), default=None, help="Our key, if not one of ssh's own.")
def add(
    *, name: str, target: str, path: Path, lab: str | None, broker: str | None, port: int, address: str | None,
    cpus: float, memory_mib: int, image_budget_mib: int, driver: str, options: tuple[str, ...],
    agent_memory_mib: int, home: str, service: str, package: str, certificates: Path | None,
    known_hosts: Path | None, identity: Path | None,
) -> int:  # fmt: skip
    """Install and start an agent on a machine, and enter it in the file; again it is brought up to date."""
    from testbed.lab.remote import agents  # noqa: PLC0415  # --help stays quick
    from testbed.lab.remote.hosts import check_hosts, load_hosts, save_hosts  # noqa: PLC0415  # as above

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


@node.command()
@click.argument("name")
@_FILE
def unit(*, name: str, path: Path) -> int:
    """Print the unit of systemd that `testbed node add` and the Ansible role write for a machine of the file.

    A file called - is standard input.
    """
    from testbed.lab.remote.unit import unit as unit_of  # noqa: PLC0415  # --help stays quick

    hosts, host = _one(name, path)
    click.echo(unit_of(hosts.lab, hosts.broker, host), nl=False)
    return 0


@node.command()
@click.argument("name")
@_FILE
def extra(*, name: str, path: Path) -> int:
    """Print the extra of this package that the driver of a machine of the file needs, or an empty line.

    A file called - is standard input.
    """
    from testbed.bus.drivers import traits_of  # noqa: PLC0415  # --help stays quick

    _, host = _one(name, path)
    click.echo(traits_of(host.driver).extra)
    return 0


def _one(name: str, path: Path) -> tuple[Hosts, Host]:
    """Return the machines of a file, or of standard input for -, and one of them."""
    import sys  # noqa: PLC0415  # --help stays quick

    from testbed.lab.remote.hosts import load_hosts, read_hosts  # noqa: PLC0415  # as above

    hosts = read_hosts(sys.stdin.read(), path) if path == Path("-") else load_hosts(path)
    (host,) = hosts.choose((name,))
    return hosts, host


@node.command()
@_NAMES
@_FILE
@click.option("--lines", type=click.IntRange(1, 100_000), default=50, help="The last so many of each.")
@_JSON
def logs(*, names: tuple[str, ...], path: Path, lines: int, as_json: bool) -> int:
    """Show what agents wrote."""
    from testbed.lab.remote import agents  # noqa: PLC0415  # --help stays quick

    return on_machines(path, names, agents.logs(lines), as_json=as_json)


@node.command()
@_NAMES
@_FILE
@_JSON
def restart(*, names: tuple[str, ...], path: Path, as_json: bool) -> int:
    """Restart agents; their guests are destroyed."""
    from testbed.lab.remote import agents  # noqa: PLC0415  # --help stays quick

    return on_machines(path, names, agents.restart, as_json=as_json)


@node.command("exec-check")
@_NAMES
@_FILE
@_JSON
def exec_check(*, names: tuple[str, ...], path: Path, as_json: bool) -> int:
    """Have each machine examined by `testbed doctor`. Exit code 1 if one has a warning or cannot be reached."""
    from testbed.lab.remote import agents  # noqa: PLC0415  # --help stays quick

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
            mend = f"; mend: {each['mend']}" if each["mend"] else ""
            text = printable(f"{each['check']}: {each['found']}{mend}")
            click.echo(f"  {each['severity']}: {text}")

    return max(on_machines(path, names, act, as_json=as_json, show=show), worst)


@node.command("push-image")
@_NAMES
@_FILE
@click.option("--folder", type=click.Path(path_type=Path), default=None, help="The image.  [default: the current one]")
@_JSON
def push_image(*, names: tuple[str, ...], path: Path, folder: Path | None, as_json: bool) -> int:
    """Copy the guest image of this machine to others, so that all boot the same."""
    from testbed.lab.guest_image.image import current  # noqa: PLC0415  # --help stays quick
    from testbed.lab.remote import agents  # noqa: PLC0415  # as above

    return on_machines(path, names, agents.push_image(folder or current().folder), as_json=as_json)


def on_machines(
    path: Path, names: tuple[str, ...], act: Callable[[Shell], Any], *, as_json: bool,
    show: Callable[[Outcome[Any]], None] | None = None,
) -> int:  # fmt: skip
    """Act on machines of a hosts file, all without names, and print what came of each. Exit code 1 if one failed."""
    from testbed.lab.remote.hosts import load_hosts  # noqa: PLC0415  # --help stays quick

    return _everywhere(load_hosts(path), names, act, as_json=as_json, show=show)


def _everywhere(
    hosts: Hosts, names: tuple[str, ...], act: Callable[[Shell], Any], *, as_json: bool,
    show: Callable[[Outcome[Any]], None] | None = None,
) -> int:  # fmt: skip
    """Act on the chosen machines, and print what came of each. Exit code 1 if one failed."""
    from testbed.lab.remote.everywhere import everywhere  # noqa: PLC0415  # --help stays quick

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
