"""`testbed node`: operations on the machines of a lab, over ssh."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.control import drain, return_
from testbed.cli.deferred import deferred

_FILE = click.option(
    "--hosts", "path", type=click.Path(path_type=Path, dir_okay=False), default=Path("hosts.toml"),
    help="File of the lab's machines; `testbed node add` writes it.",
)  # fmt: skip
_NAMES = click.argument("names", nargs=-1, metavar="[NODE]…")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")


@click.group()
def node() -> None:
    """Manage the machines of a lab over ssh; without NODE, all machines at the same time. Needs the extra `remote`.

    drain and return are orders to a run in progress on this machine; they do not need the extra.

    The host key of each machine must be known to ssh, and the login uses a key or an agent of ssh: no command asks for
    a password.

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
@click.option("--lab", default=None, help="Name of the lab; required for its first machine.")
@click.option(
    "--broker", default=None, help="Address of the broker's listener for agents; required for the first machine."
)
@click.option("--port", type=click.IntRange(1, 65535), default=22, help="Port of its sshd.")
@click.option(
    "--address", default=None, help="Address at which other nodes reach the machine.  [default: the address of ssh]"
)
@click.option("--cpus", type=float, required=True, help="CPU budget of the node, in cores.")
@click.option("--memory-mib", type=int, required=True, help="Memory budget of the node, in MiB.")
@click.option(
    "--image-budget-mib",
    type=click.IntRange(min=0),
    default=0,
    help="Disk space of all images there; 0: the whole disk.",
)
@click.option("--driver", default="process", help="Driver of the guests: process, libvirt, xen, docker or a plug-in.")
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Option of the driver, such as bridge=dfrs0; may be repeated.",
)
@click.option(
    "--agent-memory-mib",
    type=click.IntRange(min=0),
    default=512,
    help="Memory limit of the agent without its guests; 0: none.",
)
@click.option("--home", default="/opt/dfrs-testbed", help="Folder of the agent on the machine.")
@click.option(
    "--service",
    type=click.Choice(["systemd", "script"]),
    default="systemd",
    help="Service manager that keeps the agent running.",
)
@click.option("--package", required=True, help="Wheel of this package to install there.")
@click.option(
    "--certificates",
    type=click.Path(path_type=Path),
    default=None,
    help="Folder of `testbed ca` with the certificates.",
)
@click.option(
    "--known-hosts", type=click.Path(path_type=Path), default=None, help="File of host keys.  [default: that of ssh]"
)
@click.option(
    "--identity", type=click.Path(path_type=Path), default=None, help="File of the private key.  [default: that of ssh]"
)
@deferred
def add() -> None:
    """Install and start an agent on a machine, and enter the machine in the file; repeated, the agent is updated."""


@node.command()
@click.argument("name")
@_FILE
@deferred
def unit() -> None:
    """Print the systemd unit that `testbed node add` and the Ansible role write for a machine of the file.

    --hosts - reads the file from standard input.
    """


@node.command()
@click.argument("name")
@_FILE
@deferred
def extra() -> None:
    """Print the extra of this package that the driver of a machine of the file needs, or an empty line.

    --hosts - reads the file from standard input.
    """


@node.command()
@_NAMES
@_FILE
@click.option("--lines", type=click.IntRange(1, 100_000), default=50, help="Number of last lines of each agent.")
@_JSON
@deferred
def logs() -> None:
    """Show the last lines of the logs of agents."""


@node.command()
@_NAMES
@_FILE
@_JSON
@deferred
def restart() -> None:
    """Restart agents; their guests are destroyed."""


@node.command("exec-check")
@_NAMES
@_FILE
@_JSON
@deferred
def exec_check() -> None:
    """Run `testbed doctor` on each machine. Exit code 1: a machine has a warning or cannot be reached."""


@node.command("push-image")
@_NAMES
@_FILE
@click.option(
    "--folder", type=click.Path(path_type=Path), default=None, help="Folder of the image.  [default: the current image]"
)
@_JSON
@deferred
def push_image() -> None:
    """Copy the guest image of this machine to the other machines, so that all guests boot the same image."""
