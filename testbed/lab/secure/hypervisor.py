"""Settings of a node's libvirt and QEMU for live migrations by TLS, and the paths of their certificates.

Both ends present the certificate of their node's agent, which the authority for agents has issued. libvirt reads its
certificate only from /etc/pki. A daemon accepts the other nodes of its lab by the names in their certificates, and
accepts guests by TLS only.

QEMU has a port of its own for the memory of an incoming guest. The port requires a certificate of the agents'
authority, of any node, and the machine's GnuTLS negotiates the TLS version: qemu.conf of libvirt 9 has no settings for
names and versions.

A node that may send guests to a libvirtd has all rights of the daemon's clients, as libvirt has no lesser right. So
nodes between which guests migrate live must trust each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from testbed.bus.migration import Transport
from testbed.bus.topics import check_name

PKI = Path("/etc/pki")
QEMU_FOLDER = "qemu"
# Path below /etc/pki to the file in a node's folder of `testbed.lab.secure.authority`.
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
    """Return libvirtd.conf's network settings; with `tls` only the nodes `others` may connect."""
    if transport == "tcp":
        return {"listen_tls": 0, "listen_tcp": 1, "listen_addr": address, "auth_tcp": "none"}
    return {
        "listen_tls": 1,
        "listen_tcp": 0,
        "listen_addr": address,
        "auth_tls": "none",  # no password in addition to the certificate
        "tls_no_verify_certificate": 0,
        "tls_no_sanity_certificate": 0,
        "tls_allowed_dn_list": [f"CN={check_name('node', name)}" for name in others],  # an empty list allows no node
        "tls_priority": "NORMAL:-VERS-ALL:+VERS-TLS1.3",
    }


def qemu_settings(transport: Transport, address: str) -> dict[str, object]:
    """Return qemu.conf's settings for incoming migrations at `address`; with `tls` the source needs a certificate."""
    where: dict[str, object] = {
        "migration_address": address,
        "migration_host": address,  # an address, as a host name might not be resolvable
    }
    if transport == "tcp":
        return where
    return {
        **where,
        "migrate_tls_x509_cert_dir": str(PKI / QEMU_FOLDER),
        "migrate_tls_x509_verify": 1,  # verify the source's certificate, too
        "migrate_tls_force": 1,
    }
