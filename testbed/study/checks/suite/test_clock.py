"""Progress and clocks over save and restore."""

# ruff: noqa: S101  # a check is made of assertions, which pytest rewrites
from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from testbed.bus.telemetry import GuestSample
from testbed.lab.blocking import BlockingLabJob
from testbed.study.checks.lab import LabUnderTest, NodeUnderTest

pytestmark = pytest.mark.hypervisor()
PAUSE_S = 3.0
WINDOW_S = 2.0
TOLD_S = 0.5  # the greatest age of a guest's report
# largest accepted difference of two clocks on a loaded machine: each is read when a message arrives
APART_FRAC = 0.25


def sample(lab: LabUnderTest, node: NodeUnderTest, job: BlockingLabJob) -> GuestSample:
    """Return the agent's latest sample of the job's guest."""
    return next(found for found in lab.guests_on(node) if found.guest == job.name)


def worked_s(found: GuestSample) -> float:
    """Return the program's working time by its own clock, in seconds."""
    if found.supersteps is None:
        pytest.skip("the program does not report its working time by its own clock")
    return found.supersteps.compute_s + found.supersteps.comm_s


def test_no_work_is_lost_or_repeated_over_a_pause(guest: Callable[..., BlockingLabJob], node: NodeUnderTest) -> None:
    """A restored job continues from its saved state: no work unit is lost, and none is done during the pause.

    Broken by: a guest that runs on after its memory was written (its work is repeated, and its messages come twice); a
    restore from an older image; a guest that was left running beside its image.
    """
    with guest() as job:
        job.start()
        rate = job.rate(WINDOW_S)
        before = job.progress()[job.name]
        read_s = time.monotonic()
        job.save()
        time.sleep(PAUSE_S)
        job.restore()
        after = job.progress()[job.name]
        ran_s = time.monotonic() - read_s - PAUSE_S + TOLD_S
    assert after.units >= before.units, f"{node.name}: work was lost"
    assert after.units - before.units <= 2.0 * rate * ran_s, f"{node.name}: it worked during the pause"


def test_the_guests_clock_leaves_the_pause_out_and_goes_on(
    guest: Callable[..., BlockingLabJob], node: NodeUnderTest, lab: LabUnderTest
) -> None:
    """The pause is not part of the program's working time, and the program's clock runs again after the restore.

    Broken by: a clock source that is set forward by the pause in the middle of an iteration (`kvm-clock` after a save
    while running), or that a restored guest has lost, so that its timers never fire.
    """
    with guest() as job:
        job.start()
        job.rate(WINDOW_S)
        before = sample(lab, node, job)
        read_s = time.monotonic()
        job.save()
        time.sleep(PAUSE_S)
        job.restore()
        after = sample(lab, node, job)
        ran_s = time.monotonic() - read_s - PAUSE_S + TOLD_S
        time.sleep(WINDOW_S)
        later = sample(lab, node, job)
    assert worked_s(before) <= worked_s(after) <= worked_s(before) + ran_s
    window_s = (later.units_mono_ns - after.units_mono_ns) / 1e9
    assert window_s > WINDOW_S / 2, "the guest did not report its progress"
    assert worked_s(later) - worked_s(after) == pytest.approx(window_s, rel=APART_FRAC)
