"""Parameters of live migrations that a node's agent passes to its libvirt: only values of the agent's own making."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import msgspec
import pytest
from support.live import HANG_S

from node_agent.drivers.protocol import DriverError
from testbed.bus.migration import Destination, migration_uri
from testbed.errors import UserError

pytest.importorskip("libvirt", reason="libvirt-python is not installed: pip install 'dfrs-testbed[libvirt]'")

import libvirt

from node_agent.drivers.virt.driver import LibvirtDriver
from node_agent.drivers.virt.migration import Migration
from node_agent.drivers.virt.xen import XenDriver

XML = (
    "<domain><name>g</name><metadata><dfrs:guest xmlns:dfrs='urn:dfrs-testbed:guest:1' node='n1'/></metadata>"
    "<resource><partition>/one</partition></resource>"
    "<devices><interface><source bridge='br1'/></interface></devices></domain>"
)
TO = Destination(
    uri=migration_uri("qemu", "tls", "192.0.2.2"), host="192.0.2.2", node="n2", partition="/two", bridge="br2"
)


class Domain:
    """A domain that records its migrations."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, str], int]] = []

    def XMLDesc(self, _flags: int) -> str:  # noqa: N802  # libvirt's name
        return XML

    def migrateToURI3(self, uri: str, parameters: dict[str, str], flags: int) -> None:  # noqa: N802  # libvirt's name
        self.sent.append((uri, parameters, flags))

    def jobStats(self) -> dict[str, int]:  # noqa: N802  # libvirt's name
        return {"memory_processed": 7}


class Guest:
    """A guest whose domain executes orders at once."""

    name = "g"

    def __init__(self) -> None:
        self.domain = Domain()

    def depart(self) -> None:
        pass

    async def departed(self) -> None:
        pass

    async def return_from_departure(self) -> bool:
        return True

    async def on_domain(self, function, _deadline_s: float):
        return function(self.domain)


def sent(to: Destination, transport: str = "tls", hypervisor: str = "qemu") -> tuple[str, dict[str, str], int]:
    guest = Guest()

    async def main() -> None:
        migration = Migration(guest, to, hypervisor, transport, HANG_S, HANG_S)
        migration.completed({})
        await migration.run()

    try:
        asyncio.run(main())
    finally:
        assert len(guest.domain.sent) <= 1
    return guest.domain.sent[0]


def test_a_guest_goes_by_tls_to_the_place_that_the_command_names():
    uri, parameters, flags = sent(TO)
    assert uri == "qemu+tls://192.0.2.2/system"
    assert parameters[libvirt.VIR_MIGRATE_PARAM_URI] == "tcp://192.0.2.2"
    xml = parameters[libvirt.VIR_MIGRATE_PARAM_DEST_XML]
    assert "<partition>/two</partition>" in xml
    assert 'bridge="br2"' in xml
    assert 'node="n2"' in xml
    assert flags == libvirt.VIR_MIGRATE_LIVE | libvirt.VIR_MIGRATE_PEER2PEER | libvirt.VIR_MIGRATE_TLS


def test_only_a_node_that_was_told_so_sends_guests_in_the_clear():
    plain = msgspec.structs.replace(TO, uri=migration_uri("qemu", "tcp", TO.host))
    uri, _, flags = sent(plain, "tcp")
    assert uri == "qemu+tcp://192.0.2.2/system"
    assert flags == libvirt.VIR_MIGRATE_LIVE | libvirt.VIR_MIGRATE_PEER2PEER
    for to, transport in ((plain, "tls"), (TO, "tcp")):
        with pytest.raises(DriverError, match=rf"guest g: migration target .*: expected qemu\+{transport}://"):
            sent(to, transport)


@pytest.mark.parametrize(
    "uri",
    [
        "qemu+ext://192.0.2.2/system?command=/tmp/pwn.sh",
        "qemu+ssh://192.0.2.2/system?command=/tmp/pwn.sh",
        "qemu+unix://192.0.2.2/system?socket=/tmp/own",
        "qemu+tls://192.0.2.2/system?pkipath=/tmp/own",
        "qemu+tls://u@192.0.2.2/system",
        "qemu+tls://192.0.2.3/system",
        "xen+tls://192.0.2.2/system",
    ],
)
def test_no_other_target_ever_reaches_libvirt(uri: str):
    with pytest.raises(DriverError, match="guest g: migration target"):
        sent(msgspec.structs.replace(TO, uri=uri))


def test_xen_has_the_same_form():
    xen = msgspec.structs.replace(TO, uri=migration_uri("xen", "tls", TO.host))
    assert sent(xen, hypervisor="xen")[0] == "xen+tls://192.0.2.2/system"
    with pytest.raises(DriverError, match=r"expected xen\+tls://"):
        sent(TO, hypervisor="xen")


def test_a_node_whose_guests_do_not_migrate_sends_none():
    async def main(driver: LibvirtDriver) -> None:
        driver._guests.add(SimpleNamespace(name="g"))  # type: ignore[arg-type]  # only its existence matters
        with pytest.raises(DriverError, match="guest g: guests of this node do not migrate live"):
            await driver.migrate("g", TO, HANG_S, HANG_S)

    async def both() -> None:
        await main(LibvirtDriver())
        await main(XenDriver())

    asyncio.run(both())


@pytest.mark.parametrize("option", ["ssh", "qemu+tls", "TLS", "yes"])
def test_an_option_that_is_no_transport_is_refused(option: str):
    async def main() -> None:
        with pytest.raises(UserError, match=r"option migration = .*: expected tls or tcp"):
            LibvirtDriver(migration=option)

    asyncio.run(main())
