"""MPI jobs over a coordinated save."""

# ruff: noqa: S101  # a check is made of assertions, which pytest rewrites
from __future__ import annotations

from collections.abc import Callable

import pytest

from testbed.bus.guest_details import Done
from testbed.lab.blocking import BlockingLabJob
from testbed.study.checks.lab import DriverUnderTest, LabUnderTest

pytestmark = pytest.mark.hypervisor()
WORK_S = 6.0


@pytest.fixture(autouse=True)
def _with_mpi(driver: DriverUnderTest) -> None:
    if "mpi" not in driver.capabilities:
        pytest.skip("guests of this lab cannot be members of an MPI job")


def test_an_mpi_job_survives_a_coordinated_save(guest: Callable[..., BlockingLabJob], lab: LabUnderTest) -> None:
    """Ranks on all nodes under test are saved at one point, restored where they were, and produce the right result.

    Their messages are in the checksum: one that was lost, doubled or reordered shows. Broken by: a save of one member
    after the other, which leaves a message in a connection that the image of its receiver does not know.
    """
    nodes = lab.nodes if len(lab.nodes) > 1 else lab.nodes * 2
    with guest(nodes=nodes, work_s=WORK_S, cpu_cores=lab.cpus / 2) as job:
        job.start()
        job.save()
        job.restore()
        ends = job.wait_end()
    assert {end.event for end in ends.values()} == {"done"}
    assert all(isinstance(end.detail, Done) and end.detail.verified for end in ends.values())


def test_an_mpi_job_is_restored_on_other_nodes(guest: Callable[..., BlockingLabJob], lab: LabUnderTest) -> None:
    """The images of two ranks change places, and the job goes on over connections between other machines.

    Broken by: addresses of guests that belong to their first node; an image server that sends a file that is not whole.
    """
    if len(lab.nodes) < 2:
        pytest.skip("one node under test: expected two or more")
    nodes = lab.nodes[:2]
    with guest(nodes=nodes, work_s=WORK_S, cpu_cores=lab.cpus / 2) as job:
        job.start()
        job.save()
        job.restore(nodes=[node.name for node in reversed(nodes)])
        assert job.nodes == tuple(node.name for node in reversed(nodes))
        ends = job.wait_end()
    assert {end.event for end in ends.values()} == {"done"}
    assert all(isinstance(end.detail, Done) and end.detail.verified for end in ends.values())
