"""Memory over save and restore."""

# ruff: noqa: S101  # a check is made of assertions, which pytest rewrites
from __future__ import annotations

from collections.abc import Callable

import pytest

from testbed.bus.guest_details import Done
from testbed.lab.blocking import BlockingLabJob
from testbed.study.checks.lab import NodeUnderTest

pytestmark = pytest.mark.hypervisor()
WORK_S = 8.0  # seconds of work: more than the guest can do before its second save


def test_memory_is_intact_over_save_and_restore(guest: Callable[..., BlockingLabJob], node: NodeUnderTest) -> None:
    """The guest's memory is unchanged after two saves and restores.

    The program fills its memory with values that can be computed again, and at the end digests all of them together
    with its work. The node's agent has computed the same digest and compares. Broken by: a save that does not wait for
    the disk and is restored from a partial file; pages that a hypervisor writes from a stale dirty bitmap.
    """
    with guest(work_s=WORK_S) as job:
        job.start()
        for _ in range(2):
            job.save()
            job.restore()
        (end,) = job.wait_end().values()
    assert end.event == "done"
    assert isinstance(end.detail, Done)
    assert end.detail.verified, f"the agent of {node.name} did not verify checksum {end.detail.checksum}"
