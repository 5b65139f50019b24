"""Revocation lists of a node's libvirtd and QEMU, and the connections that libvirtd closes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from support.live import HANG_S, wait_until

from testbed.lab.secure.authority import Authority
from testbed.lab.secure.hypervisor import FILES, libvirtd_settings

SCRIPT = (files("testbed.lab.remote") / "hypervisor-lists").read_text()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority.create(tmp_path / "ca", "lab-1")
    for name in ("n1", "n2", "n3"):
        made.issue("node", name, hosts=["127.0.0.1"])
    return made


class Node:
    """Node n2: its files below a folder, a process named libvirtd, and a fake virt-admin."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        self.folder = folder
        self.certificate = authority.folder / "nodes/n2"
        self.pki = folder / "pki"
        self.tools = folder / "tools"
        for place in (self.pki / "CA", self.pki / "qemu", self.tools):
            place.mkdir(parents=True)
        for name in ("sh", "cmp", "install", "mv", "grep", "timeout", "awk", "sed", "tail", "cat"):
            (self.tools / name).symlink_to(shutil.which(name) or "")
        self.calls = folder / "calls"
        self.calls.touch()

    def trust(self, *places: str) -> None:
        for place in places:
            (self.pki / place).write_bytes((self.certificate / "peers.pem").read_bytes())

    def admin(self, **answers: str) -> None:
        """Let virt-admin record each call, and answer a command (with _ for -) by these words of a shell."""
        cases = "".join(f"{command.replace('_', '-')}) {words} ;;\n" for command, words in answers.items())
        path = self.tools / "virt-admin"
        path.write_text(f'#!/bin/sh\nshift 2\necho "$@" >> {self.calls}\ncase $1 in\n{cases}esac\n')
        path.chmod(0o755)

    def learn(self, *let_in: str) -> subprocess.CompletedProcess[str]:
        script = SCRIPT.replace("/etc/pki", str(self.pki)).replace("/run/libvirt", str(self.folder / "run"))
        return subprocess.run(
            ["/bin/sh", "-c", script, "hypervisor-lists", self.certificate, *let_in],
            capture_output=True, text=True, check=False, env={"PATH": str(self.tools)}, timeout=HANG_S,
        )  # fmt: skip


@pytest.fixture
def node(tmp_path: Path, authority: Authority) -> Iterator[Node]:
    made = Node(tmp_path / "node", authority)
    daemon = tmp_path / "libvirtd"
    shutil.copyfile(shutil.which("sleep") or "", daemon)
    daemon.chmod(0o755)
    child = subprocess.Popen([daemon, "1000000"])
    wait_until(lambda: Path(f"/proc/{child.pid}/comm").read_text() == "libvirtd\n", "a process of that name")
    yield made
    child.kill()
    child.wait(HANG_S)


CLIENTS = """cat <<'E'
 Id   Transport   Connected since
--------------------------------------------
 1    unix        2026-11-23 22:14:21+0000
 2    tls         2026-11-23 22:14:21+0000
 3    tls         2026-11-23 22:14:22+0000
 4    tls         2026-11-23 22:14:23+0000
 5    tls         2026-11-23 22:14:24+0000
E
"""
INFO = 'case $3 in 2) n=CN=n1 ;; 3) n=CN=n3 ;; 4) exit 0 ;; 5) n=CN=n33 ;; esac; echo "tls_x509_dname : $n"'


def test_a_list_is_given_to_who_trusts_the_labs_agents_and_to_nobody_else(node: Node) -> None:
    node.trust("qemu/ca-cert.pem")
    (node.pki / "CA/cacert.pem").write_text("another authority\n")
    done = node.learn("n2", "n3")
    assert (done.returncode, done.stdout) == (0, f"{node.pki}/qemu/ca-crl.pem: written\n"), done.stderr
    assert (node.pki / "qemu/ca-crl.pem").read_bytes() == (node.certificate / "peers.crl").read_bytes()
    assert not (node.pki / "CA/cacrl.pem").exists(), "a list of an untrusted authority would lock out everybody"
    assert node.calls.read_text() == "", "libvirtd gets no call"
    assert node.learn("n2", "n3").stdout == "", "a repeat changes nothing"


def test_connections_of_all_who_are_not_let_in_end_also_half_open_ones(node: Node) -> None:
    node.trust("CA/cacert.pem")
    node.admin(client_list=CLIENTS, client_info=INFO)
    done = node.learn("n2", "n3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{node.pki}/CA/cacrl.pem: written", "libvirtd: connections ended: 3"]
    calls = node.calls.read_text().splitlines()
    assert calls[0] == "server-update-tls libvirtd", "first, so that no client reconnects"
    assert [call for call in calls if "disconnect" in call] == [f"client-disconnect libvirtd {n}" for n in (2, 4, 5)]


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ({"server_update_tls": "echo 'error: no' >&2; echo 'error: Base64 decoding error.' >&2; echo; exit 1"},
         "libvirtd: it has not read its list: error: Base64 decoding error."),
        ({"client_list": "echo 'error: no' >&2; exit 1"}, "libvirtd: its connections are not known: error: no"),
        ({"client_list": CLIENTS, "client_info": INFO, "client_disconnect": "echo 'error: not now' >&2; exit 1"},
         "libvirtd: the connection of n1 stays open: error: not now"),
        (None, "libvirtd: virt-admin is not installed, so it has not read its list: expected package libvirt-clients"),
    ],
)  # fmt: skip
def test_a_libvirtd_that_may_still_let_the_node_in_is_a_failure_each_time(
    node: Node, answers: dict[str, str] | None, why: str
) -> None:
    node.trust("CA/cacert.pem")
    if answers is not None:
        node.admin(**answers)
    for _ in range(2):
        done = node.learn("n2", "n3")
        assert (done.returncode, done.stderr.splitlines()[-1:]) == (1, [why])


def test_a_client_that_has_gone_and_a_libvirtd_without_a_door_are_no_failures(node: Node) -> None:
    node.trust("CA/cacert.pem")
    node.admin(client_list=CLIENTS, client_info="exit 1", client_disconnect="exit 1")
    assert node.learn("n2", "n3").returncode == 0
    node.admin(server_update_tls="echo 'error: internal error: no tls service found, unable to update' >&2; exit 1")
    assert node.learn("n2", "n3").returncode == 0


LIVE = """
set -eu
cd {folder}
ip link set lo up
mkdir -p /etc/pki
for each in /run /var/lib/libvirt /var/cache/libvirt /etc/libvirt; do mkdir -p $each; mount -t tmpfs tmpfs $each; done
mount --bind pki /etc/pki
learn() {{ sh -c "$(cat script)" hypervisor-lists {certificate} "$@"; }}
learn n1 n2 n3 > before-the-daemon
mkdir /run/libvirt
libvirtd --listen --pid-file /run/libvirtd.pid -f {folder}/libvirtd.conf > libvirtd.log 2>&1 &
processes=$!
address() {{ echo "qemu+tls://127.0.0.1/system?pkipath={folder}/flat-$1"; }}
again() {{ kill -0 $processes; sleep 0.2; }} # the test fails if one of them has ended
until name=$(virsh -c "$(address n3)" hostname 2> not-yet); do again; done # it listens here last
mkfifo /run/n1 /run/n3
for each in n1 n3; do
  virsh -c "$(address $each)" <> /run/$each > $each 2>&1 &
  processes="$processes $!"
done
says() {{ grep -c "^$name$" $1 || true; }}
echo hostname > /run/n1; echo hostname > /run/n3
for each in n1 n3; do until [ "$(says $each)" = 1 ]; do again; done; done
learn n1 n2 n3 > nobody-out
cp revoked.crl {certificate}/peers.crl
learn n2 n3 > n1-out
echo hostname > /run/n3
until [ "$(says n3)" = 2 ]; do again; done
until grep -q "Failed to reconnect" n1; do echo hostname > /run/n1; again; done # it may not know yet that it was ended
[ "$(says n1)" = 1 ]
if grep -q Disconnected n3; then exit 1; fi
echo nonsense > {certificate}/peers.crl
if learn n2 n3 > broken 2>&1; then exit 1; fi
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a separate libvirtd needs root, for namespaces")
@pytest.mark.skipif(shutil.which("libvirtd") is None, reason="libvirtd is not installed")
def test_a_real_libvirtd_ends_the_connection_of_the_revoked_node_alone(authority: Authority, tmp_path: Path) -> None:
    """In separate namespaces, without a guest: connections of n1 and n3 at n2 from before the revocation."""
    certificate = authority.folder / "nodes/n2"
    for place, name in FILES.items():
        (tmp_path / "pki" / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(certificate / name, tmp_path / "pki" / place)
    for node in ("n1", "n3"):
        (tmp_path / f"flat-{node}").mkdir()
        for target, name in (("cacert.pem", "peers.pem"), ("clientcert.pem", "cert.pem"), ("clientkey.pem", "key.pem")):
            shutil.copyfile(authority.folder / "nodes" / node / name, tmp_path / f"flat-{node}" / target)
    settings = {**libvirtd_settings("tls", "127.0.0.1", ["n1", "n3"]), "auth_unix_rw": "none", "auth_unix_ro": "none"}
    text = "".join(f"{key} = {value!r}\n".replace("'", '"') for key, value in settings.items())
    (tmp_path / "libvirtd.conf").write_text(text)
    (tmp_path / "script").write_text(SCRIPT)
    before = (certificate / "peers.crl").read_bytes()
    authority.revoke("node", "n1")
    (tmp_path / "revoked.crl").write_bytes((certificate / "peers.crl").read_bytes())
    (certificate / "peers.crl").write_bytes(before)
    inside = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    script = LIVE.format(folder=tmp_path, certificate=certificate)
    with (tmp_path / "said").open("w") as said:
        done = subprocess.run([*inside, "sh", "-xc", script], stdout=said, stderr=said, check=False, timeout=HANG_S)
    assert done.returncode == 0, (tmp_path / "said").read_text()
    lists = "/etc/pki/CA/cacrl.pem: written\n/etc/pki/qemu/ca-crl.pem: written\n"
    assert (tmp_path / "before-the-daemon").read_text() == lists
    assert (tmp_path / "nobody-out").read_text() == ""
    assert (tmp_path / "n1-out").read_text() == f"{lists}libvirtd: connections ended: 1\n"
    broken = (tmp_path / "broken").read_text()
    assert "libvirtd: it has not read its list: error: Unable to set x509 certificate revocation list" in broken
