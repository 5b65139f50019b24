"""What a node's libvirt and QEMU are told for live migrations by TLS, and where they look for certificates.

Both ends show the certificate of their node's agent, whose authority is that of agents. libvirt looks for what it
shows to others in /etc/pki alone. A daemon lets in the other nodes of its lab, by the names in their certificates, and
takes guests by TLS only.

QEMU has a port of its own for the memory of a guest that arrives. It wants a certificate of the agents' authority, any
node's, and the version of TLS is what GnuTLS of the machine agrees on: qemu.conf of libvirt 9 knows no names and no
versions for it.

Who may send guests to a libvirtd may do with it whatever its clients can: it knows no smaller right. So nodes between
which guests migrate live trust each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from testbed.bus.migration import Transport
from testbed.bus.topics import check_name

PKI = Path("/etc/pki")
QEMU_FOLDER = "qemu"
# By place below /etc/pki: the file in a node's folder of `testbed.lab.secure.authority`.
FILES: Mapping[str, str] = {
    "CA/cacert.pem": "peers.pem",
    "libvirt/servercert.pem": "cert.pem",
    "libvirt/private/serverkey.pem": "key.pem",
    "libvirt/clientcert.pem": "cert.pem",
    "libvirt/private/clientkey.pem": "key.pem",
    f"{QEMU_FOLDER}/ca-cert.pem": "peers.pem",
    f"{QEMU_FOLDER}/server-cert.pem": "cert.pem",
    f"{QEMU_FOLDER}/server-key.pem": "key.pem",
    f"{QEMU_FOLDER}/client-cert.pem": "cert.pem",
    f"{QEMU_FOLDER}/client-key.pem": "key.pem",
}


def libvirtd_settings(transport: Transport, address: str, others: Sequence[str]) -> dict[str, object]:
    """Return what libvirtd.conf says of the network: its address, and who may come in by `tls`: `others`."""
    if transport == "tcp":
        return {"listen_tls": 0, "listen_tcp": 1, "listen_addr": address, "auth_tcp": "none"}
    return {
        "listen_tls": 1,
        "listen_tcp": 0,
        "listen_addr": address,
        "auth_tls": "none",  # no password beside the certificate
        "tls_no_verify_certificate": 0,
        "tls_no_sanity_certificate": 0,
        "tls_allowed_dn_list": [f"CN={check_name('node', name)}" for name in others],  # nobody if there are none
        "tls_priority": "NORMAL:-VERS-ALL:+VERS-TLS1.3",
    }


def qemu_settings(transport: Transport, address: str) -> dict[str, object]:
    """Return what qemu.conf says of migrations: they come in at `address`, with `tls` from who has a certificate."""
    where: dict[str, object] = {
        "migration_address": address,
        "migration_host": address,  # a host name may have no address anywhere
    }
    if transport == "tcp":
        return where
    return {
        **where,
        "migrate_tls_x509_cert_dir": str(PKI / QEMU_FOLDER),
        "migrate_tls_x509_verify": 1,  # the source's certificate, too
        "migrate_tls_force": 1,
    }
