"""The machines of the pages: two hosts at the addresses that the pages use, and this machine as their head."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from support.ansible.hosts import Place, Ssh, hosts

HEAD = "192.0.2.1"  # addresses for documentation (RFC 5737): they are never routed
NODES = {"n1": "192.0.2.11", "n2": "192.0.2.12"}
BRIDGE = "dfrs-pages"
# texts of the pages about a lab's machines, and their replacements here: half of this machine, and no systemd
FILLED = {
    "--cpus 8 --memory-mib 4000": "--cpus 0.4 --memory-mib 400 --service script",
    "cpus = 8\nmemory_mib = 4000": "cpus = 0.4\nmemory_mib = 400",
    "--driver libvirt --option bridge=dfrs0 ": "",
    "ansible/hosts.toml": "hosts.toml",  # which the playbook writes
    "ansible/certificates": "certificates",
    "jobs = 40": "jobs = 4",
}


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@contextlib.contextmanager
def machines(folder: Path, wheels: Path) -> Iterator[Ssh]:
    """Bring up the hosts on a bridge whose end on this machine is the head; all is removed afterwards."""
    with contextlib.ExitStack() as stack:
        _ip("link", "add", BRIDGE, "type", "bridge")
        stack.callback(_ip, "link", "delete", BRIDGE)
        _ip("address", "add", f"{HEAD}/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        places = []
        for name, address in NODES.items():
            space, port = f"{BRIDGE}-{name}", f"{BRIDGE}{name}"
            _ip("netns", "add", space)
            stack.callback(_ip, "netns", "delete", space)
            _ip("-n", space, "link", "set", "lo", "up")
            _ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", port, "master", BRIDGE, "up")
            _ip("-n", space, "address", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            places.append(Place(address, 22, ("nsenter", f"--net=/run/netns/{space}")))
        ssh, _ = stack.enter_context(hosts(folder, tuple(NODES), wheels, places))
        yield ssh


def make_home(folder: Path, ssh: Ssh) -> Path:
    """Make a home folder with ssh's known hosts, and a key that the hosts accept."""
    own = folder / "home" / ".ssh"
    own.mkdir(parents=True)
    own.chmod(0o700)
    shutil.copy(ssh.known_hosts, own / "known_hosts")
    shutil.copy(ssh.identity, own / "id_ed25519")
    (own / "id_ed25519").chmod(0o600)
    return own.parent
