"""`testbed ca`: the certificates of a lab of several machines."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from testbed.errors import UserError

if TYPE_CHECKING:
    from testbed.lab.secure.authority import Authority, Party

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
def init(*, folder: Path, lab: str) -> int:
    """Make the lab's authorities in FOLDER."""
    _extra()
    from testbed.lab.secure.authority import Authority  # noqa: PLC0415  # heavy, and an extra

    there = (folder / "lab.json").exists()
    with _writing(folder):
        Authority.create(folder, lab)
    click.echo(f"{folder}: {'was there already' if there else f'authorities of lab {lab} made'}")
    return 0


@ca.command()
@_FOLDER
@click.argument("party", type=click.Choice(["broker", "node", "controller"]))
@click.argument("name", required=False, default="")
@click.option("--host", "hosts", multiple=True, help="Name or address at which it is reached; may be repeated.")
@click.option("--days", type=click.IntRange(1, 3650), default=397, help="For how long it is valid.")
@click.option("--renew-before-days", type=float, default=30.0, help="Make it anew when it ends sooner than that.")
@click.option("--readmit", is_flag=True, help="Also if its certificate was revoked: it comes in again.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def issue(
    *, folder: Path, party: str, name: str, hosts: tuple[str, ...], days: int, renew_before_days: float,
    readmit: bool, as_json: bool,
) -> int:  # fmt: skip
    """Give a party its certificate, in a subfolder of FOLDER that holds all that it needs."""
    import json  # noqa: PLC0415  # --help stays quick

    _check_named(party, name)
    authority = _authority(folder)
    with _writing(folder):
        held, made = authority.issue(
            party,  # type: ignore[arg-type]  # click.Choice allows only the names of parties
            name, hosts=hosts, days=days, renew_before_days=renew_before_days, readmit=readmit,
        )  # fmt: skip
    if as_json:
        click.echo(json.dumps({"folder": str(held.folder), "made": made, "days_left": round(held.days_left, 2)}))
    else:
        click.echo(f"{held.folder}: {'made' if made else 'was there'}, valid for {held.days_left:.0f} days")
    return 0


@ca.command()
@_FOLDER
@click.argument("party", type=click.Choice(["broker", "node", "controller"]))
@click.argument("name", required=False, default="")
@click.option(
    "--hosts", "path", type=click.Path(path_type=Path, dir_okay=False), default=Path("hosts.toml"),
    help="The lab's machines, which get the list over ssh; it must be of the same lab as FOLDER.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def revoke(*, folder: Path, party: Party, name: str, path: Path, as_json: bool) -> int:
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
    import json  # noqa: PLC0415  # --help stays quick

    from testbed.cli.revoked import hand_out, told  # noqa: PLC0415  # as above

    _check_named(party, name)
    authority = _authority(folder)
    with _writing(folder):
        done = authority.revoke(party, name)
    refused: UserError | None = None
    try:
        reached, failed = hand_out(authority, path, party, name)
    except UserError as error:  # the revocation counts all the same, and is told first
        reached, failed, refused = [], [str(error)] if as_json else [], error
    if as_json:
        click.echo(json.dumps({
            "party": party, "name": name, "new": done.new, "revoked": done.new + done.before,
            "written": [str(each) for each in done.written], "reached": reached, "failed": failed,
        }, indent=2))  # fmt: skip
    else:
        for line in told(authority, f"{party} {name}".strip(), done, reached, failed):
            click.echo(line)
    if refused is not None:
        raise refused
    return 1 if failed else 0


@ca.command("list")
@_FOLDER
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(*, folder: Path, as_json: bool) -> int:
    """List what was issued, with the days that are left. Exit code 1 if something has run out."""
    import json  # noqa: PLC0415  # --help stays quick

    held = list(_authority(folder).held())
    if as_json:
        click.echo(json.dumps([
            {"party": each.party, "name": each.name, "days_left": round(each.days_left, 2), "hosts": each.hosts,
             "revoked": each.revoked}
            for each in held
        ], indent=2))  # fmt: skip
    else:
        for each in held:
            what = f"{each.party} {each.name}".strip()
            state = "revoked" if each.revoked else f"{each.days_left:.0f} days left"
            click.echo(f"{what}: {state}{', ' + ' '.join(each.hosts) if each.hosts else ''}")
    return 1 if any(each.days_left <= 0 for each in held) else 0


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
def broker_files(
    *, folder: Path, out: Path, bind: str, certificates: Path | None, rules: Path | None, state_dir: Path, user: str,
    agent_port: int, controller_port: int, log_denied: bool,
) -> int:  # fmt: skip
    """Write Mosquitto's configuration and rules for all nodes and controllers that have certificates.

    After a node was added the broker has to be restarted: it reads what agents may subscribe to when it starts.
    """
    from testbed.lab.secure import broker  # noqa: PLC0415  # --help stays quick

    authority = _authority(folder)
    controllers = authority.let_in("controller")
    with _writing(out):
        authority.lists()
        out.mkdir(parents=True, exist_ok=True)
    files = {
        "mosquitto.conf": broker.mosquitto_config(
            bind, (certificates or folder / "broker").absolute(), state_dir.absolute(), (rules or out).absolute(),
            agent_port=agent_port, controller_port=controller_port, user=user, log_denied=log_denied,
        ),
        "agents.acl": broker.agents_acl(authority.lab, authority.let_in("node"), controllers),
        "controllers.acl": broker.controllers_acl(authority.lab, controllers),
        broker.SUBSCRIPTIONS: broker.agents_subscriptions(authority.lab, authority.let_in("node")),
    }  # fmt: skip
    for name, text in files.items():
        path = out / name
        changed = not path.exists() or path.read_text(encoding="utf-8") != text
        if changed:
            with _writing(path):
                path.write_text(text, encoding="utf-8")
        click.echo(f"{path}: {'written' if changed else 'unchanged'}")
    return 0


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Tell in one line, as a `UserError`, that nothing can be written at `path`."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise UserError(f"{where}: cannot write: {error.strerror}: expected a place that this user may write") from None


def _check_named(party: str, name: str) -> None:
    if (party == "broker") != (not name):
        raise UserError(f"{party}: expected {'no name' if party == 'broker' else 'a name'}")


def _authority(folder: Path) -> Authority:
    _extra()
    from testbed.lab.secure.authority import Authority  # noqa: PLC0415  # heavy, and an extra

    return Authority(folder)


def _extra() -> None:
    try:
        import cryptography  # noqa: F401, PLC0415  # only whether it is there
    except ImportError:
        raise UserError("testbed ca: needs the extra `secure`: pip install 'dfrs-testbed[secure]'") from None
