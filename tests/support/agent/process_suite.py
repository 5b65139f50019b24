"""The conformance suite of drivers, for processes under real caps."""

from __future__ import annotations

import pytest

from node_agent.drivers.process import ProcessDriver
from node_agent.drivers.protocol import Driver
from testbed.testing import DriverConformance


@pytest.mark.slow
class ProcessSuite(DriverConformance):
    memory_mib = 96
    units_a_second = 40_000
    units_per_iteration = 200
    throttled_s = 2.0

    def make(self) -> Driver:
        return ProcessDriver()
