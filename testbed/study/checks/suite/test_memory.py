"""Memory over save and restore."""

# ruff: noqa: S101  # a check is made of assertions, which pytest rewrites
from __future__ import annotations

from collections.abc import Callable

import pytest

from testbed.bus.guest_details import Done
from testbed.lab.blocking import BlockingLabJob
from testbed.study.checks.lab import NodeUnderTest

pytestmark = pytest.mark.hypervisor()
WORK_S = 8.0  # more than it gets to do before it is saved for the second time


def test_memory_is_intact_over_save_and_restore(guest: Callable[..., BlockingLabJob], node: NodeUnderTest) -> None:
    """The guest's memory comes back as it was, twice.

    Its program fills its memory with values that it can compute again, digests all of them with its work at the end,
    and the node's agent, which has computed the same beside, compares. Broken by: a save that does not wait for the
    disk and is restored from a torn file; pages that a hypervisor writes from a stale bitmap of dirty ones.
    """
    with guest(work_s=WORK_S) as job:
        job.start()
        for _ in range(2):
            job.save()
            job.restore()
        (end,) = job.wait_end().values()
    assert end.event == "done"
    assert isinstance(end.detail, Done)
    assert end.detail.verified, f"nobody knows on {node.name} whether {end.detail.checksum} is right"
