"""Choice of KVM or emulation by booting a guest, because /dev/kvm alone does not prove that guests boot under KVM."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import platform
from pathlib import Path

from node_agent.drivers.protocol import DriverError, NodeBudget
from node_agent.drivers.virt.channel import GuestChannel
from node_agent.drivers.virt.domain import Machine, Place, channel_path, console_path, domain_xml, own_guest
from node_agent.drivers.virt.hypervisor import Hypervisor
from testbed.host.guest_image import GuestImage
from testbed.host.locks import lock
from testbed.host.process_identity import boot_id
from testbed.host.whole_files import write_whole

KVM = Path("/dev/kvm")
BOOT_WITHIN_S = 20.0
_CALL_S = 30.0
_log = logging.getLogger(__name__)


async def choose_accelerator(wanted: str, hypervisor: Hypervisor, budget: NodeBudget, image: GuestImage) -> str:
    """Return libvirt's domain type, `kvm` or `qemu`; `wanted` is auto, kvm or tcg.

    With auto a guest is booted under KVM once for this machine, kernel and image; the answer is kept beside the image.
    Raises `DriverError` if kvm is wanted and no guest boots under it.
    """
    if wanted == "tcg":
        return "qemu"
    works = await asyncio.to_thread(KVM.exists) and await _works(hypervisor, budget, image)
    if wanted == "kvm" and not works:
        raise DriverError(f"accel = kvm: no guest boots under {KVM} here; expected auto or tcg")
    return "kvm" if works else "qemu"


async def _works(hypervisor: Hypervisor, budget: NodeBudget, image: GuestImage) -> bool:
    path = image.folder / "kvm.json"
    machine = [platform.release(), await asyncio.to_thread(boot_id)]
    loop = asyncio.get_running_loop()
    held = await asyncio.to_thread(lock, image.folder / "kvm.lock")  # agents of one machine try one after the other
    try:
        known = _read(path)
        if known.get("machine") != machine:
            begin_s = loop.time()
            works = await _boots(hypervisor, budget, image)
            if works is None:
                return False
            known = {"machine": machine, "works": works, "tried_s": round(loop.time() - begin_s, 3)}
            write_whole(path, json.dumps(known) + "\n")
            _log.info("a guest under KVM %s", "boots" if works else "does not boot: guests are emulated")
        return known.get("works") is True
    finally:
        os.close(held)


async def _boots(hypervisor: Hypervisor, budget: NodeBudget, image: GuestImage) -> bool | None:
    """Whether a guest sends `hello` under KVM; None when libvirt would not even create it."""
    spec = own_guest(f"{budget.prefix}{budget.node}-kvm-{os.getpid()}"[:63], image.floor_mib)
    xml = domain_xml(spec, budget.node, Machine("kvm", image.kernel, image.initramfs), Place())
    channel = GuestChannel(spec.guest, lambda _frame: None)
    try:
        await hypervisor.call(_CALL_S, lambda connection: connection.createXML(xml, 0))
    except DriverError as error:
        _log.warning("no guest under KVM: %s", error)
        return None
    try:
        live = await hypervisor.on_domain(spec.guest, _CALL_S, lambda domain: domain.XMLDesc())
        await channel.attach(hypervisor.file(channel_path(live)), BOOT_WITHIN_S)
    except DriverError as error:
        _log.info("no guest under KVM: %s", error)
        return False
    else:
        return True
    finally:
        channel.detach()
        with contextlib.suppress(DriverError):
            await hypervisor.on_domain(spec.guest, _CALL_S, lambda domain: domain.destroy())
        hypervisor.file(console_path(spec.guest)).unlink(missing_ok=True)


def _read(path: Path) -> dict[str, object]:
    with contextlib.suppress(OSError, ValueError):
        value = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(value, dict):
            return value
    return {}
