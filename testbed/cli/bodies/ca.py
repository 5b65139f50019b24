"""`testbed ca`: the certificates of a lab of several machines."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import click

from testbed.errors import UserError

try:
    from testbed.cli.bodies.revoked import hand_out, told
    from testbed.lab.secure import broker
    from testbed.lab.secure.authority import Authority, Party
except ImportError as error:
    raise UserError("testbed ca: needs the extra `secure`: pip install 'dfrs-testbed[secure]'") from error


def init(*, folder: Path, lab: str) -> int:
    there = (folder / "lab.json").exists()
    with _writing(folder):
        Authority.create(folder, lab)
    click.echo(f"{folder}: {'exists already' if there else f'authorities of lab {lab} created'}")
    return 0


def issue(
    *, folder: Path, party: str, name: str, hosts: tuple[str, ...], days: int, renew_before_days: float,
    readmit: bool, as_json: bool,
) -> int:  # fmt: skip
    _check_named(party, name)
    authority = Authority(folder)
    with _writing(folder):
        held, made = authority.issue(
            party,  # type: ignore[arg-type]  # click.Choice allows only the names of parties
            name, hosts=hosts, days=days, renew_before_days=renew_before_days, readmit=readmit,
        )  # fmt: skip
    if as_json:
        click.echo(json.dumps({"folder": str(held.folder), "made": made, "days_left": round(held.days_left, 2)}))
    else:
        click.echo(f"{held.folder}: {'created' if made else 'exists already'}, valid for {held.days_left:.0f} days")
    return 0


def revoke(*, folder: Path, party: Party, name: str, path: Path, as_json: bool) -> int:
    _check_named(party, name)
    authority = Authority(folder)
    with _writing(folder):
        done = authority.revoke(party, name)
    refused: UserError | None = None
    try:
        reached, failed = hand_out(authority, path, party, name)
    except UserError as error:  # the revocation is valid nevertheless, and is printed first
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


def list_(*, folder: Path, as_json: bool) -> int:
    held = list(Authority(folder).held())
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


def broker_files(
    *, folder: Path, out: Path, bind: str, certificates: Path | None, rules: Path | None, state_dir: Path, user: str,
    agent_port: int, controller_port: int, log_denied: bool,
) -> int:  # fmt: skip
    authority = Authority(folder)
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
    """Turn an `OSError` into a one-line `UserError` about a failed write to `path`."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise UserError(f"{where}: cannot write: {error.strerror}: expected a place that this user may write") from None


def _check_named(party: str, name: str) -> None:
    if (party == "broker") != (not name):
        raise UserError(f"{party}: expected {'no name' if party == 'broker' else 'a name'}")
