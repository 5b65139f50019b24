"""Real processes under real caps, held to what every driver must do."""

from __future__ import annotations

from support.agent.process_suite import ProcessSuite

from node_agent.drivers.process import ProcessDriver
from node_agent.drivers.protocol import Driver


class TestProcessDriver(ProcessSuite):
    """With control groups, where they can be made."""


class TestProcessDriverWithoutPrivilege(ProcessSuite):
    lacks = frozenset({"shares"})

    def make(self) -> Driver:
        return ProcessDriver(caps="duty")
