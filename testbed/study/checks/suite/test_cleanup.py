"""Clean-up: a stopped job leaves no guest and no image, and a released lease leaves no guest."""

# ruff: noqa: S101  # a check is made of assertions, which pytest rewrites
from __future__ import annotations

from collections.abc import Callable

import pytest

from testbed.lab.blocking import BlockingLabJob
from testbed.study.checks.lab import LabUnderTest, NodeUnderTest
from testbed.study.checks.suite.helpers import files_of, is_local, local_images, processes_of, still_there, until

pytestmark = pytest.mark.hypervisor()
GONE_WITHIN_S = 10.0


def test_a_stopped_job_leaves_no_guest_and_no_image(
    guest: Callable[..., BlockingLabJob], node: NodeUnderTest, lab: LabUnderTest
) -> None:
    """A job that is saved, restored, saved again and stopped leaves no process and no file.

    Broken by: a stop that forgets the image of an earlier save; a hypervisor that does not exit when ordered to.
    """
    folder = local_images(lab, node)
    with guest() as job:
        job.start()
        job.save()
        assert files_of(folder, job.guests), "a saved job has an image"
        job.restore()
        running = processes_of(lab, node, job.name)
        assert running, "a running job is a process of this machine"
        job.save()
    assert files_of(folder, job.guests) == []
    assert until(lambda: not still_there(running), GONE_WITHIN_S), still_there(running)
    assert job.name not in {found.guest for found in lab.guests_on(node)}


def test_a_released_lease_leaves_no_guest(
    guest: Callable[..., BlockingLabJob], node: NodeUnderTest, lab: LabUnderTest
) -> None:
    """The node's agent destroys the guests of a controller that releases its lease without stopping its job.

    Broken by: agents that wait for a command of a controller that has ended; locks that never expire.
    """
    local = is_local(lab, node)
    job = guest().__enter__()  # the context is never left: the lab object that could stop the job is closed below
    job.start()
    running = processes_of(lab, node, job.name) if local else []
    assert running or not local, "a running job is a process of this machine"
    with lab.away():
        assert until(lambda: not still_there(running), GONE_WITHIN_S), still_there(running)
    # on another machine only the node's agent can check
    assert until(lambda: job.name not in {found.guest for found in lab.guests_on(node)}, GONE_WITHIN_S)
