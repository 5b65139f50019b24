"""Distributes certificate revocation lists over ssh to the machines that check them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

from testbed.lab.remote.hosts import Head
from testbed.lab.remote.shell import RemoteError, Shell

BROKER_LISTS = ("agents-ca.crl", "controllers-ca.crl")
NODE_LISTS = ("ca.crl", "peers.crl")


def to_broker(folder: Path, head: Head, rules: dict[str, str]) -> Callable[[Shell], str]:
    """Return a function that copies the lists of `folder` and the rules (file name to text) to the broker, and reloads.

    The broker's user owns these files afterwards, because the broker reads them after it has dropped root rights.
    """

    def act(shell: Shell) -> str:
        config = f"{head.rules}/mosquitto.conf"
        if "crlfile" not in shell.run("cat", config):
            raise RemoteError(
                shell.host.name, config, "it has no crlfile: write it by `testbed ca broker-files`, restart Mosquitto"
            )
        for name in BROKER_LISTS:
            shell.put(folder / name, f"{head.certificates}/{name}", 0o600)
            shell.run("chown", f"--reference={head.certificates}/cert.pem", f"{head.certificates}/{name}")
        for name, text in rules.items():
            shell.write(text, f"{head.rules}/{name}", 0o600)
            shell.run("chown", f"--reference={config}", f"{head.rules}/{name}")
        shell.run(*head.reload)
        return "the broker has the list, and read it"

    return act


def to_node(folder: Path, let_in: Sequence[str]) -> Callable[[Shell], str]:
    """Return a function that copies the lists of its subfolder of `folder` to a node, for the agent's next connection.

    If libvirt and QEMU trust the lab's agents, they get the list as well, and libvirtd's connections from nodes that
    are not in `let_in` are ended (`hypervisor-lists`, beside this module).
    """
    script = (files("testbed.lab.remote") / "hypervisor-lists").read_text(encoding="utf-8")

    def act(shell: Shell) -> str:
        for name in NODE_LISTS:
            shell.put(folder / shell.host.name / name, f"{shell.host.certificate_folder}/{name}", 0o600)
        changed = shell.run("sh", "-c", script, "hypervisor-lists", shell.host.certificate_folder, *let_in)
        return "; ".join(["has the list", *changed.splitlines()])

    return act
