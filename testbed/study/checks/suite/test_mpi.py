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
    """Ranks on all nodes under test are saved together, restored on the same nodes, and compute the expected checksum.

    The checksum covers their messages, so a message that is lost, duplicated or reordered changes it. Broken by: a save
    of one rank after the other, which loses a message in transit that its receiver's image does not have.
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
    """Two ranks are restored on each other's nodes, and the job continues over connections between these nodes.

    Broken by: guest addresses that belong to their first node; an image server that sends an incomplete file.
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
