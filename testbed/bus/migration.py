"""Destinations of live migrations: libvirt URIs in one strict form, written by controllers and checked by agents.

URIs of libvirt can name programs to start, keys to read, sockets and users. Here only the hypervisor, the transport,
the host and the port vary, and no part of a URI comes from a node.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal

import msgspec

from testbed.errors import TestbedError, shown

Transport = Literal["tls", "tcp"]
HYPERVISORS = ("qemu", "xen")  # by libvirt's name
TRANSPORTS: tuple[Transport, ...] = ("tls", "tcp")
HOST_PATTERN = r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?"
PARTITION_PATTERN = r"(/[A-Za-z0-9][A-Za-z0-9_.-]{0,127})+"  # of a control group, as libvirt names it
BRIDGE_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}"
URI_PATTERN = (
    rf"(?P<hypervisor>{'|'.join(HYPERVISORS)})\+(?P<transport>{'|'.join(TRANSPORTS)})://(?P<host>{HOST_PATTERN}|\[[0-9a-f:.]+\])"
    r"(:(?P<port>[1-9][0-9]{0,4}))?/system"
)
_URI = re.compile(URI_PATTERN)
_NO_LIBVIRT = r"null://[a-z0-9][a-z0-9-]{0,62}/system"  # of a dry run, whose guests are simulated
_SHOWN_CHARS = 120


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """The destination of a live migration, from the controller's own data: no node can influence it.

    `uri` is the target's libvirt at `host`; a command with a URI of another form is invalid for every driver.
    `partition` and `bridge` are the control group and the bridge of guests on the target. With an empty `partition`
    libvirt chooses the group; with an empty `bridge` the guest keeps the name of its bridge.
    """

    uri: Annotated[str, msgspec.Meta(pattern=rf"\A({URI_PATTERN}|{_NO_LIBVIRT})\Z", max_length=320)]
    host: Annotated[str, msgspec.Meta(pattern=rf"\A({HOST_PATTERN}|[0-9a-f:.]+)\Z", max_length=253)]
    node: Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9][a-z0-9-]{0,62}\Z")]
    partition: Annotated[str, msgspec.Meta(pattern=rf"\A({PARTITION_PATTERN})?\Z", max_length=255)] = ""
    bridge: Annotated[str, msgspec.Meta(pattern=rf"\A({BRIDGE_PATTERN})?\Z")] = ""


class MigrationUriError(TestbedError):
    """The URI of a migration does not have the only valid form, or has another host than the announced one."""


def migration_uri(hypervisor: str, transport: Transport, host: str, port: int | None = None) -> str:
    """Return the URI at which one libvirt (`hypervisor` is qemu or xen) reaches another for a live migration."""
    return f"{hypervisor}+{transport}://{in_uri(host)}{'' if port is None else f':{port}'}/system"


def check_migration_uri(uri: str, hypervisor: str, transport: str, host: str) -> None:
    """Raise `MigrationUriError` unless `uri` equals `migration_uri` of these arguments with any port or none."""
    found = _URI.fullmatch(uri)
    expected = f"{hypervisor}+{transport}://HOST[:PORT]/system"
    if (
        found is None
        or (found["hypervisor"], found["transport"]) != (hypervisor, transport)
        or (found["port"] is not None and int(found["port"]) > 65535)
    ):
        raise MigrationUriError(f"migration target {shown(uri, _SHOWN_CHARS)}: expected {expected}")
    if found["host"] != in_uri(host):
        raise MigrationUriError(
            f"migration target {shown(uri, _SHOWN_CHARS)}: expected the host {shown(host, _SHOWN_CHARS)}, "
            "as the command says"
        )


def in_uri(host: str) -> str:
    """Return a host name or address as it stands in a URI: an IPv6 address in its shortest form, in brackets."""
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        return host
    return f"[{address}]"
