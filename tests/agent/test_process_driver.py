"""The conformance suite of drivers, with real processes under real caps."""

from __future__ import annotations

from typing import ClassVar

from support.agent.process_suite import ProcessSuite

from node_agent.drivers.process import ProcessDriver
from node_agent.drivers.protocol import Driver


class TestProcessDriver(ProcessSuite):
    """With control groups, if this machine permits them."""


class TestProcessDriverWithoutPrivilege(ProcessSuite):
    LONG: ClassVar = {  # they take longest, and the same driver does them with control groups in every run of the tests
        "test_a_job_of_three_is_saved_midway_and_one_member_moves",
        "test_a_saved_guest_goes_on_elsewhere_to_the_same_end",
        "test_a_guest_comes_back_from_memory_and_from_a_cold_disk",
    }
    lacks = frozenset({"shares"})

    def make(self) -> Driver:
        return ProcessDriver(caps="duty")
