"""Virtual machines of others on a node: no command destroys or adopts one, with any name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.live import HANG_S

from node_agent.drivers.protocol import NodeBudget, SuspectError
from testbed.bus.messages import GuestSpec, ProgramSpec

pytest.importorskip("libvirt", reason="libvirt-python is not installed: pip install 'dfrs-testbed[libvirt]'")

import libvirt

from node_agent.drivers.virt.domain import METADATA
from node_agent.drivers.virt.driver import LibvirtDriver
from node_agent.drivers.virt.hypervisor import Hypervisor

FOREIGN = "test"  # the domain that libvirt's test driver begins with
SPEC = GuestSpec(
    guest=FOREIGN, run="t", job=0, task=0, cpu_cores=1.0, memory_mib=128,
    program=ProgramSpec(name="eatcpu", work_units=9, units_per_iteration=1, seed=5),
)  # fmt: skip
ATTACKS: dict[str, Callable[[LibvirtDriver], Awaitable[None]]] = {
    "stop": lambda driver: driver.stop(FOREIGN),
    "adopt": lambda driver: driver.adopt(SPEC, 0.5),
    "start": lambda driver: driver.start(SPEC, 0.5),
    "restore": lambda driver: driver.restore(SPEC, 0.5, Path("/nowhere/a.img")),
}


async def driver_of(connection: libvirt.virConnect, folder: Path) -> LibvirtDriver:
    """Return an open driver on libvirt's test driver, which runs no real guests."""
    driver = LibvirtDriver()
    driver._budget = NodeBudget("n1", 1.0, 1000, folder, folder, "127.0.0.1", "dfrs-")
    driver._hypervisor = Hypervisor("test:///default", driver)
    driver._hypervisor._connection = connection
    driver._hypervisor._up.set()
    driver._image = SimpleNamespace(floor_mib=1)
    driver._platform.domain_xml = lambda _spec, _node: domain(FOREIGN, "")
    return driver


def domain(name: str, metadata: str) -> str:
    return (
        f"<domain type='test'><name>{name}</name><memory>1024</memory><vcpu>1</vcpu><os><type>hvm</type></os>"
        f"<metadata>{metadata}</metadata></domain>"
    )


@pytest.fixture
def connection() -> libvirt.virConnect:
    opened = libvirt.open("test:///default")
    yield opened
    opened.close()


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_domain_that_is_not_ours_runs_on(connection: libvirt.virConnect, tmp_path: Path, attack: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(HANG_S):
            driver = await driver_of(connection, tmp_path)
            with pytest.raises(
                SuspectError, match=f"guest {FOREIGN}: .* is not the testbed's: expected one"
            ) as refused:
                await ATTACKS[attack](driver)
            assert refused.value.suspicious
            assert "\n" not in str(refused.value)
            assert FOREIGN not in driver._guests

    asyncio.run(main())
    assert connection.lookupByName(FOREIGN).isActive()


def test_a_guest_that_an_earlier_agent_left_is_destroyed(connection: libvirt.virConnect, tmp_path: Path) -> None:
    owner = f"<g:guest xmlns:g='{METADATA}' run='t' job='0' task='0' node='n1' lease='x'/>"
    connection.createXML(domain("dfrs-t-j0-t0", owner))

    async def main() -> None:
        async with asyncio.timeout(HANG_S):
            driver = await driver_of(connection, tmp_path)
            await driver.stop("dfrs-t-j0-t0")
            await driver.stop("dfrs-t-j0-t0")

    asyncio.run(main())
    assert [each.name() for each in connection.listAllDomains()] == [FOREIGN]
