"""The conformance suite of drivers, with guests of Xen: it runs in domain 0; tests/box runs it on a nested node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from node_agent.drivers.protocol import Driver
from testbed.testing import DriverConformance

_CAPABILITIES = Path("/proc/xen/capabilities")
_IN_CONTROL = _CAPABILITIES.exists() and "control_d" in _CAPABILITIES.read_text(encoding="ascii")

pytestmark = [
    pytest.mark.skipif(not _IN_CONTROL, reason="this machine is not a domain 0 of Xen; tests/box has one"),
    pytest.mark.slow,
]


class TestXenDriver(DriverConformance):
    """Two drivers share the hypervisor, unlike agents: only the names of their guests distinguish them."""

    lacks = frozenset({"live", "traffic"})
    lazy = False
    node_memory_mib = 1024
    memory_mib = 128
    node_cpus = 0.5  # of one CPU; as with real jobs, the control domain gets the rest
    units_a_second = 4_000
    watched_frac = 0.1  # each sample is a call to a slow hypervisor: 8 to 15 calls per second were measured
    throttled_cores = 0.1  # an emulated kernel itself takes some hundredths
    throttled_s = 10.0
    least_calibrated_frac = 1 / 20  # an emulated guest counts time in which it waits for a CPU as work

    def make(self) -> Driver:
        from node_agent.drivers.virt.xen import XenDriver

        return XenDriver(bridge=os.environ.get("DFRS_TEST_BRIDGE", "xenbr0"), image=os.environ["DFRS_TEST_IMAGE"])
