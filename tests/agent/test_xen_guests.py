"""What every driver must do, by guests of Xen: runs in its domain 0, where tests/box takes it on a nested node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from node_agent.drivers.protocol import Driver
from testbed.testing import DriverConformance

_CAPABILITIES = Path("/proc/xen/capabilities")
_IN_CONTROL = _CAPABILITIES.exists() and "control_d" in _CAPABILITIES.read_text(encoding="ascii")

pytestmark = [
    pytest.mark.skipif(not _IN_CONTROL, reason="this machine is no domain 0 of Xen; tests/box has one"),
    pytest.mark.slow,
]


class TestXenDriver(DriverConformance):
    """Two drivers share the hypervisor, as no two agents do: what is theirs is told apart by names alone."""

    lacks = frozenset({"live", "traffic"})
    lazy = False
    node_memory_mib = 1024
    memory_mib = 128
    node_cpus = 0.5  # of the one there is: as with real jobs, the control domain gets the rest
    units_a_second = 4_000
    watched_frac = 0.1  # each is a call to a hypervisor that is slow to answer: 8 to 15 a second were seen
    throttled_cores = 0.1  # an emulated kernel takes some hundredths for itself
    throttled_s = 10.0
    least_calibrated_frac = 1 / 20  # an emulated guest that waits for a CPU takes that for time at work

    def make(self) -> Driver:
        from node_agent.drivers.virt.xen import XenDriver

        return XenDriver(bridge=os.environ.get("DFRS_TEST_BRIDGE", "xenbr0"), image=os.environ["DFRS_TEST_IMAGE"])
