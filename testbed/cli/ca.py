"""`testbed ca`: the certificates of a lab of several machines."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred

_FOLDER = click.argument("folder", type=click.Path(path_type=Path, file_okay=False))


@click.group()
def ca() -> None:
    """Make the certificates by which a lab of several machines knows its broker, agents and controllers.

    FOLDER stays with whoever owns the lab; each party gets its own subfolder only. Calling a command again changes
    nothing until a certificate nears its end. Needs the extra `secure`.

    \b
    Example:
      testbed ca init certificates --lab lab-1
      testbed ca issue certificates broker --host head.example
      testbed ca issue certificates node n1 --host 192.0.2.11
      testbed ca issue certificates controller alice
      testbed ca broker-files certificates --out /etc/mosquitto/dfrs
      testbed ca revoke certificates node n1
    """  # noqa: D301  # \b keeps click from wrapping the example


@ca.command()
@_FOLDER
@click.option("--lab", required=True, help="Name of the lab.")
@deferred
def init() -> None:
    """Make the lab's authorities in FOLDER."""


@ca.command()
@_FOLDER
@click.argument("party", type=click.Choice(["broker", "node", "controller"]))
@click.argument("name", required=False, default="")
@click.option("--host", "hosts", multiple=True, help="Name or address at which it is reached; may be repeated.")
@click.option("--days", type=click.IntRange(1, 3650), default=397, help="For how long it is valid.")
@click.option("--renew-before-days", type=float, default=30.0, help="Make it anew when it ends sooner than that.")
@click.option("--readmit", is_flag=True, help="Also if its certificate was revoked: it comes in again.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@deferred
def issue() -> None:
    """Give a party its certificate, in a subfolder of FOLDER that holds all that it needs."""


@ca.command()
@_FOLDER
@click.argument("party", type=click.Choice(["broker", "node", "controller"]))
@click.argument("name", required=False, default="")
@click.option(
    "--hosts", "path", type=click.Path(path_type=Path, dir_okay=False), default=Path("hosts.toml"),
    help="The lab's machines, which get the list over ssh; it must be of the same lab as FOLDER.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@deferred
def revoke() -> None:
    """Put a party out: its certificates count no more, at the broker and between nodes.

    The list of revoked certificates goes to the broker and all other nodes over ssh by the file of the lab's machines.
    Without that file the command says where the list must be. Again is harmless, and completes what could not be
    reached or ended. Only `testbed ca issue --readmit` lets the party in again.

    Exit code 1 if something is left to do: a machine was not reached, the node's connection goes on, or there is no
    file. Exit code 2, with nothing sent, if the file is that of another lab or cannot be read. The certificates are
    revoked in FOLDER in any case.

    \b
    Examples:
      testbed ca revoke certificates node n1
      testbed ca revoke certificates controller alice --hosts ansible/hosts.toml
    """  # noqa: D301  # \b keeps click from wrapping the examples


@ca.command("list")
@_FOLDER
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@deferred
def list_() -> None:
    """List what was issued, with the days that are left. Exit code 1 if something has run out."""


@ca.command("broker-files")
@_FOLDER
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Where the files go.")
@click.option("--bind", default="0.0.0.0", help="Address that the broker listens on.")  # noqa: S104  # the lab's door
@click.option("--certificates", type=click.Path(path_type=Path), default=None, help="Where the broker finds its own.")
@click.option("--rules", type=click.Path(path_type=Path), default=None, help="Where the broker finds the rules.")
@click.option("--state-dir", type=click.Path(path_type=Path), default=Path("/var/lib/mosquitto"), show_default=True)
@click.option("--user", default="mosquitto", help="Whom the broker becomes.")
@click.option("--agent-port", type=click.IntRange(1, 65535), default=8883)
@click.option("--controller-port", type=click.IntRange(1, 65535), default=8884)
@click.option("--log-denied", is_flag=True, help="Log what the rules deny, and every packet: see docs/security.md.")
@deferred
def broker_files() -> None:
    """Write Mosquitto's configuration and rules for all nodes and controllers that have certificates.

    After a node was added the broker has to be restarted: it reads what agents may subscribe to when it starts.
    """
