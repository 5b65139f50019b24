"""`testbed node`: operations on the machines of a lab, over ssh."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.control import drain, return_
from testbed.cli.deferred import deferred

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
@deferred
def add() -> None:
    """Install and start an agent on a machine, and enter it in the file; again it is brought up to date."""


@node.command()
@click.argument("name")
@_FILE
@deferred
def unit() -> None:
    """Print the unit of systemd that `testbed node add` and the Ansible role write for a machine of the file.

    A file called - is standard input.
    """


@node.command()
@click.argument("name")
@_FILE
@deferred
def extra() -> None:
    """Print the extra of this package that the driver of a machine of the file needs, or an empty line.

    A file called - is standard input.
    """


@node.command()
@_NAMES
@_FILE
@click.option("--lines", type=click.IntRange(1, 100_000), default=50, help="The last so many of each.")
@_JSON
@deferred
def logs() -> None:
    """Show what agents wrote."""


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
    """Have each machine examined by `testbed doctor`. Exit code 1 if one has a warning or cannot be reached."""


@node.command("push-image")
@_NAMES
@_FILE
@click.option("--folder", type=click.Path(path_type=Path), default=None, help="The image.  [default: the current one]")
@_JSON
@deferred
def push_image() -> None:
    """Copy the guest image of this machine to others, so that all boot the same."""
