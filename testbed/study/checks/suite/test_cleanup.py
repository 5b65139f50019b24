"""Nothing is left: not by a job that was stopped, and not by a controller that let its lease go."""

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
    """A job that was saved, restored, saved again and stopped leaves neither process nor file.

    Broken by: a stop that forgets the image of an earlier save; a hypervisor that was ordered to exit and did not.
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
    """A controller that goes without stopping its job: the node's agent destroys the guest.

    Broken by: agents that wait for a command of a controller that has ended; locks that never expire.
    """
    local = is_local(lab, node)
    job = guest().__enter__()  # and never left: the lab that could stop it will be another
    job.start()
    running = processes_of(lab, node, job.name) if local else []
    assert running or not local, "a running job is a process of this machine"
    with lab.away():
        assert until(lambda: not still_there(running), GONE_WITHIN_S), still_there(running)
    # on another machine only the node's agent can check
    assert until(lambda: job.name not in {found.guest for found in lab.guests_on(node)}, GONE_WITHIN_S)
