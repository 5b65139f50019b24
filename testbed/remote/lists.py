"""Lists of revoked certificates on their way to the machines that check them, over ssh."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from testbed.remote.hosts import Head
from testbed.remote.shell import RemoteError, Shell

BROKER_LISTS = ("agents-ca.crl", "controllers-ca.crl")
NODE_LISTS = ("ca.crl", "peers.crl")


def to_broker(folder: Path, head: Head, rules: dict[str, str]) -> Callable[[Shell], str]:
    """Return what gives the broker the lists of `folder` and its rules (file name to text), and has it read them.

    The broker owns these files afterwards: it reads them when it is root no more.
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


# Where libvirt and QEMU trust the lab's agents, they get the list by the name under which each looks for it.
_HYPERVISOR = """
cd "$0"
for pair in /etc/pki/CA/cacert.pem:/etc/pki/CA/cacrl.pem /etc/pki/qemu/ca-cert.pem:/etc/pki/qemu/ca-crl.pem; do
  cmp -s peers.pem "${pair%%:*}" || continue
  install -m 644 peers.crl "${pair#*:}"
  echo "${pair#*:}"
done
if cmp -s peers.pem /etc/pki/CA/cacert.pem && command -v virt-admin >/dev/null; then
  virt-admin server-update-tls libvirtd >/dev/null
fi
"""


def to_node(folder: Path) -> Callable[[Shell], str]:
    """Return what gives a node the lists of its subfolder of `folder`; its agent reads them for the next connection."""

    def act(shell: Shell) -> str:
        for name in NODE_LISTS:
            shell.put(folder / shell.host.name / name, f"{shell.host.certificate_folder}/{name}", 0o600)
        others = shell.run("sh", "-ec", _HYPERVISOR, shell.host.certificate_folder).split()
        return "has the list" + (f", also as {' and '.join(others)}" if others else "")

    return act
