"""Capped guests side by side."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from testbed.lab.blocking import BlockingLabJob
from testbed.study.checks.lab import LabUnderTest, NodeUnderTest
from testbed.study.checks.suite.helpers import check_use, used_cores

pytestmark = pytest.mark.hypervisor()
EVERY_S = 0.1
WINDOW_S = 3.0
Doubt = Callable[[str], None]


def test_capped_neighbours_keep_to_their_own_caps(
    guest: Callable[..., BlockingLabJob], node: NodeUnderTest, lab: LabUnderTest, doubt: Doubt
) -> None:
    """Two guests of one node, with caps of 0.3 and 0.5 of it, each get the CPU time of their own cap.

    Broken by: caps of a group instead of a guest; weights in place of caps, which give a guest more CPU time while its
    neighbour is idle than while it is busy.
    """
    small, large = 0.3, 0.5
    with guest() as one, guest() as other:
        one.start(small)
        alone = lab.watch(node, [one], EVERY_S, WINDOW_S), lab.idle_cores(node)
        other.start(large)
        both = lab.watch(node, [one, other], EVERY_S, WINDOW_S), lab.idle_cores(node)
    for (watched, idle_cores), job, yield_frac in ((alone, one, small), (both, one, small), (both, other, large)):
        check_use(used_cores(watched, job.name), job.cpu_cores * yield_frac, idle_cores, doubt)
