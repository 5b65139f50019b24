"""libvirt's and QEMU's own programs accept the certificates of nodes, and no others: their clients, without daemons."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.live import HANG_S

from testbed.bus.tls import server_context
from testbed.lab.box.hypervisor import Libvirtd
from testbed.lab.box.spec import NodeSpec
from testbed.lab.secure.authority import Authority
from testbed.lab.secure.hypervisor import FILES

PROGRAM = bytes.fromhex("20008086")  # of libvirt's remote procedures, in the header of the first that a client calls


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    authority = Authority.create(tmp_path_factory.mktemp("ca") / "ca", "lab-1")
    for name in ("n1", "n2"):
        authority.issue("node", name, hosts=["127.0.0.1"])
    authority.issue("node", "elsewhere", hosts=["192.0.2.9"])
    authority.issue("controller", "alice")
    return authority


def node(lab: Authority, name: str) -> Path:
    return lab.folder / "nodes" / name


def pki(folder: Path, source: Path) -> Path:
    """Lay out the files of a node as below /etc/pki; returns their folder."""
    for place, name in FILES.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, folder / place)
    return folder


def call(tmp_path: Path, client: Path, server: Path) -> tuple[str, bytes, str]:
    """Connect libvirt's client to a server with a certificate.

    Returns the client's name as the server knows it, its first message, and its error.
    """
    flat = tmp_path / "flat"  # files that libvirt reads from one folder if a URI names it
    flat.mkdir()
    laid = pki(tmp_path / "pki", client)
    for name, place in (
        ("cacert.pem", "CA/cacert.pem"), ("clientcert.pem", "libvirt/clientcert.pem"),
        ("clientkey.pem", "libvirt/private/clientkey.pem"),
    ):  # fmt: skip
        shutil.copyfile(laid / place, flat / name)
    context = server_context(server)
    context.num_tickets = 0  # libvirt's client treats the first data as the server's consent
    heard: list[tuple[str, bytes]] = []
    with socket.create_server(("127.0.0.1", 0)) as door:

        def serve() -> None:
            connection, _ = door.accept()
            connection.settimeout(HANG_S)
            try:
                with context.wrap_socket(connection, server_side=True) as secure:
                    certificate = secure.getpeercert()
                    assert certificate is not None
                    secure.sendall(b"\1")
                    heard.append((certificate["subject"][0][0][1], secure.recv(64)))
            except OSError:
                connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        uri = f"qemu+tls://127.0.0.1:{door.getsockname()[1]}/system?pkipath={flat}"
        argv = ["virsh", "-c", uri, "version"]
        ended = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=HANG_S)
        thread.join(HANG_S)
    name, said = heard[0] if heard else ("", b"")
    return name, said, ended.stderr


@pytest.mark.skipif(shutil.which("virsh") is None, reason="virsh is not installed")
def test_libvirt_s_client_and_a_node_know_each_other(lab: Authority, tmp_path: Path) -> None:
    name, said, error = call(tmp_path, node(lab, "n1"), node(lab, "n2"))
    assert name == "n1", error  # tls_allowed_dn_list has this name as CN=n1
    assert PROGRAM in said


@pytest.mark.skipif(shutil.which("virsh") is None, reason="virsh is not installed")
def test_libvirt_s_client_refuses_a_node_at_another_address_and_of_another_lab(lab: Authority, tmp_path: Path) -> None:
    stranger = Authority.create(tmp_path / "other", "lab-1").issue("node", "n2", hosts=["127.0.0.1"])[0].folder
    for number, server in enumerate((node(lab, "elsewhere"), stranger)):
        folder = tmp_path / str(number)
        folder.mkdir()
        _, said, error = call(folder, node(lab, "n1"), server)
        assert said == b""
        assert "ertificate" in error


@pytest.mark.skipif(shutil.which("qemu-img") is None, reason="qemu-img is not installed")
@pytest.mark.parametrize("endpoint", ["client", "server"])
def test_qemu_takes_the_certificates_of_a_node(lab: Authority, tmp_path: Path, endpoint: str) -> None:
    folder = pki(tmp_path / "pki", node(lab, "n1")) / "qemu"

    def words(place: Path) -> str:
        secret = f"tls-creds-x509,id=t,dir={place},endpoint={endpoint},verify-peer=yes"
        absent = ["--image-opts", f"driver=file,filename={tmp_path / 'none'}"]
        argv = ["qemu-img", "info", "--object", secret, *absent]
        return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=HANG_S).stderr

    assert "No such file" in words(folder)  # the image is missing, so the credentials were read and accepted before
    (folder / "ca-cert.pem").write_bytes((lab.folder / "controllers-ca.pem").read_bytes())
    assert "ertificate" in words(folder)


def test_a_daemon_that_was_told_something_else_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lab of an earlier release counts as one with TLS, although its libvirtd accepts everybody."""
    monkeypatch.setattr("testbed.lab.box.spec.RUN_ROOT", tmp_path)
    monkeypatch.setattr("testbed.lab.box.hypervisor.is_on_network", lambda *_: True)
    monkeypatch.setattr(Libvirtd, "answers", lambda _self: True)
    nodes = [NodeSpec("l", name, 1.0, 100, "libvirt", f"10.77.255.{at}/16") for at, name in enumerate("ab")]
    daemon = Libvirtd(nodes[0], SimpleNamespace(state=SimpleNamespace(nodes=nodes), process=lambda _name: None))
    folder = nodes[0].run_dir / "etc"
    assert not daemon.there()
    folder.mkdir(parents=True)
    for path, text in daemon._files().items():
        path.write_text(text, encoding="utf-8")
    assert daemon.there()
    for name in ("libvirtd.conf", "qemu.conf"):
        before = (folder / name).read_text(encoding="utf-8")
        (folder / name).write_text(before.replace("tls", "tcp"), encoding="utf-8")
        assert not daemon.there()
        (folder / name).write_text(before, encoding="utf-8")
