"""The conformance suite of drivers, with real processes under real caps."""

from __future__ import annotations

from support.agent.process_suite import ProcessSuite

from node_agent.drivers.process import ProcessDriver
from node_agent.drivers.protocol import Driver


class TestProcessDriver(ProcessSuite):
    """With control groups, if this machine permits them."""


class TestProcessDriverWithoutPrivilege(ProcessSuite):
    lacks = frozenset({"shares"})

    def make(self) -> Driver:
        return ProcessDriver(caps="duty")
