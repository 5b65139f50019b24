"""The conformance suite of drivers, with real virtual machines on two private libvirtds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import ClassVar

import pytest
from support.libvirt_box import destination, driver_options, libvirt_box, needs_hypervisor

from node_agent.drivers.protocol import Driver
from testbed.bus.migration import Destination
from testbed.testing import DriverConformance
from testbed.testing.nodes import Node

pytestmark = [needs_hypervisor, pytest.mark.slow]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    with libvirt_box(f"t{os.getpid():x}d", tmp_path_factory.mktemp("lab")) as journal:
        yield journal


class TestLibvirtDriver(DriverConformance):
    """The conformance suite, with virtual machines on two nodes."""

    LONG: ClassVar = {  # ten seconds to two minutes each; other drivers do them in every run of the tests
        "test_a_job_of_three_is_saved_midway_and_one_member_moves",
        "test_a_rank_with_less_work_waits_for_the_other",
        "test_what_is_not_touched_takes_no_memory_and_no_image",
        "test_a_guest_comes_back_from_memory_and_from_a_cold_disk",
        "test_calibration_gives_the_rate_of_guests",
        "test_a_guest_has_its_share_before_it_works_and_another_when_told",
        "test_a_guest_migrates_live_to_the_same_end",
        "test_a_cap_change_shows_in_what_is_watched",
        "test_a_save_that_fails_leaves_the_guest_held",
        "test_an_order_that_comes_too_late_fails_after_the_end_was_told",
        "test_an_image_of_another_guest_is_refused",
        "test_orders_that_make_no_sense_are_refused",
    }
    node_memory_mib = 1536
    memory_mib = 128
    units_a_second = 8_000
    throttled_cores = 0.1  # an emulated kernel itself takes some hundredths
    throttled_s = 6.0
    least_calibrated_frac = 1 / 20  # an emulated guest counts time in which it waits for a CPU as work

    @pytest.fixture(autouse=True)
    def _lab(self, lab: object) -> None:
        self._options = [driver_options(lab, "a"), driver_options(lab, "b")]
        self._lab_made = lab
        self._made = 0

    def make(self) -> Driver:
        from node_agent.drivers.virt.driver import LibvirtDriver

        self._made += 1
        return LibvirtDriver(**self._options[(self._made - 1) % 2])

    def destination(self, node: Node) -> Destination:
        return destination(self._lab_made, "ab"[int(node.budget.node.removeprefix("n"))], node.budget.node)

    def make_again(self, node: Node) -> Driver:
        from node_agent.drivers.virt.driver import LibvirtDriver

        return LibvirtDriver(**self._options[int(node.budget.node.removeprefix("n"))])
