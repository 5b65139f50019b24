"""What every driver must do, by guests of Xen: runs in its domain 0, where tests/box takes it on a nested node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from driver_conformance import DriverConformance

from node_agent.drivers.protocol import Driver

_CAPABILITIES = Path("/proc/xen/capabilities")
_IN_CONTROL = _CAPABILITIES.exists() and "control_d" in _CAPABILITIES.read_text(encoding="ascii")

pytestmark = [
    pytest.mark.skipif(not _IN_CONTROL, reason="this machine is no domain 0 of Xen; tests/box has one"),
    pytest.mark.slow,
]


class TestXenDriver(DriverConformance):
    """Two drivers share the hypervisor, as no two agents do: what is theirs is told apart by names alone."""

    whole = True
    lazy = False
    within_s = 600.0  # emulated Xen has a hundredth of a real one's speed
    node_memory_mib = 1024
    memory_mib = 128
    units_a_second = 5_000  # work enough not to end while a guest is asked to be saved, for which it runs
    watched_least = 10  # each is a call to a hypervisor that is slow to answer
    migration_work_s = 6.0

    def make(self) -> Driver:
        from node_agent.drivers.virt.xen import XenDriver

        return XenDriver(bridge=os.environ.get("DFRS_TEST_BRIDGE", "xenbr0"), image=os.environ["DFRS_TEST_IMAGE"])
