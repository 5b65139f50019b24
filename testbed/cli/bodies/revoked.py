"""Distribution of revocation lists by `testbed ca revoke`, and its output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from testbed.errors import UserError
from testbed.lab.remote.everywhere import Outcome, everywhere
from testbed.lab.remote.hosts import Head, Hosts, load_hosts
from testbed.lab.remote.lists import to_broker, to_node
from testbed.lab.secure.authority import Authority, Party, Revoked
from testbed.lab.secure.broker import agents_acl, controllers_acl
from testbed.lab.secure.farewell import say_farewell

_ANSIBLE = "ansible-playbook site.yml --tags certificates,broker,agent"


def hand_out(authority: Authority, path: Path, party: Party, name: str) -> tuple[list[str], list[str]]:
    """Copy the revocation lists to the broker's machine and to all valid nodes of the hosts file at `path`.

    The present connection of a revoked node is ended, unless an earlier call has ended it. Returns successes and
    failures, one line each. Raises `UserError`, before anything is sent, for a file of another lab.
    """
    failed = list(_beyond_ssh(authority, party))
    if not path.exists():
        return [], [f"{path}: no such file: no machine has the list from this command", *failed]
    hosts = load_hosts(path)
    if hosts.lab != authority.lab:
        raise UserError(
            f"{path}: lab = {hosts.lab!r}: expected {authority.lab!r}, the lab of {authority.folder / 'lab.json'}; "
            "nothing was sent"
        )
    reached: list[str] = []
    if hosts.head is None:
        failed.append(f'{path}: it has no [head]: expected the broker\'s machine, as ssh = "root@192.0.2.1"')
    else:
        gone = name if party == "node" and authority.farewell_due(name) else ""
        _to_head(authority, hosts, hosts.head, gone, reached, failed)
    let_in = authority.let_in("node")
    nodes = [host for host in hosts.hosts if host.name in let_in]
    _note(everywhere(hosts, nodes, to_node(authority.folder / "nodes", let_in)), reached, failed)
    if party != "controller":  # nodes do not check certificates of controllers
        unnamed = sorted(set(let_in) - {host.name for host in nodes})
        failed += [
            f"{each}: {path} does not name it: expected its machine there, or the list by hand" for each in unnamed
        ]
    return reached, failed


def _beyond_ssh(authority: Authority, party: Party) -> Iterator[str]:
    """Yield lines about lists that this command cannot copy: the list of revoked brokers for controllers."""
    if party == "broker":
        for name in authority.let_in("controller"):
            path = authority.folder / "controllers" / name / "ca.crl"
            yield f"controller {name}: expected {path} beside its certificate"


def _to_head(authority: Authority, hosts: Hosts, head: Head, gone: str, reached: list[str], failed: list[str]) -> None:
    """Copy lists and rules to the broker; end the connection of the revoked node `gone`, if it is set."""
    folder = authority.folder / "broker"

    def rules(parted: str) -> dict[str, str]:
        controllers = authority.let_in("controller")
        return {
            "agents.acl": agents_acl(authority.lab, authority.let_in("node"), controllers, parted),
            "controllers.acl": controllers_acl(authority.lab, controllers),
        }

    if gone:
        outcomes = everywhere(hosts, [head.host], to_broker(folder, head, rules(gone)))
        if not outcomes[0].error:
            _part(authority, hosts.broker, gone, reached, failed)
    _note(everywhere(hosts, [head.host], to_broker(folder, head, rules(""))), reached, failed)


def _part(authority: Authority, broker: str, gone: str, reached: list[str], failed: list[str]) -> None:
    """End the connection that a revoked node has at the broker."""
    try:
        why_not = say_farewell(authority, broker, gone)
    finally:
        authority.revoke("node", gone)  # the certificate that was used for this
    if why_not:
        failed.append(f"the connection of {gone} stays open, but cannot send or receive: {why_not}")
    else:
        authority.farewell_said(gone)
        reached.append(f"{gone}: its connection was ended")


def _note(outcomes: Sequence[Outcome[str]], reached: list[str], failed: list[str]) -> None:
    reached += [f"{each.host.name}: {each.value}" for each in outcomes if not each.error]
    failed += [each.error for each in outcomes if each.error]


def told(authority: Authority, who: str, done: Revoked, reached: Sequence[str], failed: Sequence[str]) -> Iterator[str]:
    """Yield the effects of a revocation, and the remaining tasks."""
    if done.new:
        yield f"{who}: revoked, {done.new} certificate{'s' if done.new > 1 else ''}"
    else:
        yield f"{who}: was revoked already"
    for path in done.written:
        yield f"{path}: written"
    yield from reached
    for line in failed:
        yield f"not reached: {line}"
    if reached and not failed:
        return
    folder = authority.folder
    yield "until they have the list, these continue to admit it:"
    yield (
        f"  the broker: {folder}/broker/*.crl beside its certificate, the rules of `testbed ca broker-files {folder}`; "
        "then systemctl reload mosquitto"
    )
    yield f"  each other node: {folder}/nodes/NODE/*.crl beside its certificate; its agent reads them by itself"
    yield f"copy it by this command with --hosts, or remove {who} from the inventory and run: {_ANSIBLE}"
