"""`testbed ca`: the certificates of a lab of several machines."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred

_FOLDER = click.argument("folder", type=click.Path(path_type=Path, file_okay=False))


@click.group()
def ca() -> None:
    """Manage the certificates that identify the broker, agents and controllers of a lab of several machines.

    FOLDER holds the private keys of the authorities and stays with the owner of the lab; each party gets only its own
    subfolder. Repeating a command changes nothing until a certificate is about to expire. Needs the extra `secure`.

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
    """Create the certificate authorities of a lab in FOLDER."""


@ca.command()
@_FOLDER
@click.argument("party", type=click.Choice(["broker", "node", "controller"]))
@click.argument("name", required=False, default="")
@click.option("--host", "hosts", multiple=True, help="Host name or address of the party; may be repeated.")
@click.option("--days", type=click.IntRange(1, 3650), default=397, help="Validity in days.")
@click.option(
    "--renew-before-days", type=float, default=30.0, help="Renew a certificate that expires within this many days."
)
@click.option("--readmit", is_flag=True, help="Admit a party again whose certificate was revoked.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@deferred
def issue() -> None:
    """Issue the certificate of a party to a subfolder of FOLDER, which holds all files that the party needs."""


@ca.command()
@_FOLDER
@click.argument("party", type=click.Choice(["broker", "node", "controller"]))
@click.argument("name", required=False, default="")
@click.option(
    "--hosts", "path", type=click.Path(path_type=Path, dir_okay=False), default=Path("hosts.toml"),
    help="File of the lab's machines, which receive the list over ssh; it must be of the same lab as FOLDER.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@deferred
def revoke() -> None:
    """Revoke the certificates of a party, at the broker and between nodes.

    The list of revoked certificates is sent over ssh to the broker and to all other nodes in the file of the lab's
    machines. Without the file the command prints where the list must be copied to. Repeat the command to reach machines
    that did not answer. Only `testbed ca issue --readmit` admits the party again.

    Exit code 1: something is left to do, because a machine did not answer, the connection of the node is still open, or
    there is no file; 2: nothing was sent, because the file is of another lab or cannot be read. In all cases the
    certificates are revoked in FOLDER.

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
    """List the issued certificates with the days left. Exit code 1: a certificate has expired."""


@ca.command("broker-files")
@_FOLDER
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder to write the files to."
)
@click.option("--bind", default="0.0.0.0", help="Address that the broker listens on.")  # noqa: S104  # the lab's door
@click.option(
    "--certificates",
    type=click.Path(path_type=Path),
    default=None,
    help="Path of the broker's certificates on its machine.",
)
@click.option(
    "--rules", type=click.Path(path_type=Path), default=None, help="Path of the rules on the broker's machine."
)
@click.option(
    "--state-dir", type=click.Path(path_type=Path), default=Path("/var/lib/mosquitto"), show_default=True,
    help="Folder of the broker's stored messages on its machine.",
)  # fmt: skip
@click.option("--user", default="mosquitto", help="System user of the broker.")
@click.option("--agent-port", type=click.IntRange(1, 65535), default=8883, help="Port for agents.")
@click.option("--controller-port", type=click.IntRange(1, 65535), default=8884, help="Port for controllers.")
@click.option("--log-denied", is_flag=True, help="Log all packets and denied requests; see docs/security.md.")
@deferred
def broker_files() -> None:
    """Write the configuration and access rules of Mosquitto for all nodes and controllers that have certificates.

    Restart the broker after a node was added: it reads the subscription rules of agents only at its start.
    """
