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
    node_cpus = 0.5  # of the one there is: as with real jobs, the control domain gets the rest
    units_a_second = 40_000  # ten times what it does: no guest ends while it is asked to be held, or runs to be saved
    watched_least = 25  # each is a call to a hypervisor that is slow to answer: 8 to 15 a second were seen
    migration_work_s = 1.0

    def make(self) -> Driver:
        from node_agent.drivers.virt.xen import XenDriver

        return XenDriver(bridge=os.environ.get("DFRS_TEST_BRIDGE", "xenbr0"), image=os.environ["DFRS_TEST_IMAGE"])
