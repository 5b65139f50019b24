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
        "test_calibration_gives_the_rate_of_guests",
        "test_a_job_of_two_begins_together_and_ends_to_the_same_result_each_time",
        "test_what_is_not_touched_takes_no_memory_and_no_image",
        "test_a_save_that_fails_leaves_the_guest_held",
        "test_an_order_that_comes_too_late_fails_after_the_end_was_told",
        "test_an_image_of_another_guest_is_refused",
    }
    lacks = frozenset({"shares"})

    def make(self) -> Driver:
        return ProcessDriver(caps="duty")
