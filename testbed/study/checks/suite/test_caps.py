"""CPU caps are enforced, follow changes, and hold over save and restore.

The checks use CPU time as the node counts it, because the rate of a guest's work also falls for other reasons. A guest
that gets much less than its cap is a fault if the machine had idle CPU time, else a doubt. The accuracy of caps is a
figure (`cap_error_points`).
"""

# ruff: noqa: S101  # a check is made of assertions, which pytest rewrites
from __future__ import annotations

from collections.abc import Callable

import pytest

from testbed.lab.blocking import BlockingLabJob
from testbed.study.checks.lab import LabUnderTest, NodeUnderTest
from testbed.study.checks.suite.helpers import check_use, most_cores, used_cores

pytestmark = pytest.mark.hypervisor()
Doubt = Callable[[str], None]
EVERY_S = 0.1
WINDOW_S = 3.0
SETTLED_S = 0.5  # seconds that are left out after a start and after a change of a cap


@pytest.mark.parametrize("yield_frac", [0.2, 0.6])
def test_a_cap_is_honoured(
    guest: Callable[..., BlockingLabJob], node: NodeUnderTest, lab: LabUnderTest, doubt: Doubt, yield_frac: float
) -> None:
    """A guest with unlimited CPU demand uses as much CPU time as its cap allows.

    Broken by: `systemctl daemon-reload`, which resets quotas that libvirt has set (systemd #17938); a quota that counts
    one virtual CPU only.
    """
    with guest() as job:
        job.start(yield_frac)
        cap_cores = job.cpu_cores * yield_frac
        watched = job.watch(EVERY_S, WINDOW_S)
        idle_cores = lab.idle_cores(node)
        found = job.progress()[job.name].cap_cores
    assert found == pytest.approx(cap_cores, rel=0.02, abs=0.005), f"{node.name}: read back"
    check_use(used_cores(watched, job.name, SETTLED_S), cap_cores, idle_cores, doubt)


def test_a_cap_follows_its_changes(
    guest: Callable[..., BlockingLabJob], node: NodeUnderTest, lab: LabUnderTest, doubt: Doubt
) -> None:
    """A lower cap takes CPU time away from a running guest, and a higher one gives it back.

    Broken by: a setting that is written to the guest's configuration and takes effect only at its next start.
    """
    with guest() as job:
        high, low = job.cpu_cores * 0.7, job.cpu_cores * 0.2
        job.start(0.7)
        watched = job.watch(EVERY_S, 3 * WINDOW_S, ((WINDOW_S, low), (2 * WINDOW_S, high)))
        idle_cores = lab.idle_cores(node)
    cut_s, raise_s = (change.end_s for change in watched.cap_changes)
    assert [change.caps[job.name] for change in watched.cap_changes] == pytest.approx([low, high], rel=0.02)
    upto = [index for index, t_s in enumerate(watched.t_s) if cut_s + SETTLED_S <= t_s < 2 * WINDOW_S]
    cpu_s, t_s = watched.cpu_s[job.name], watched.t_s
    used_low = (cpu_s[upto[-1]] - cpu_s[upto[0]]) / (t_s[upto[-1]] - t_s[upto[0]])
    used_high = used_cores(watched, job.name, raise_s + SETTLED_S)
    assert used_low <= most_cores(low)
    check_use(used_high, high, idle_cores, doubt)


def test_a_cap_is_kept_over_save_and_restore(
    guest: Callable[..., BlockingLabJob], node: NodeUnderTest, lab: LabUnderTest, doubt: Doubt
) -> None:
    """A restored guest is capped from its first moment on, not only after the next command that sets its cap.

    Broken by: Xen, where libvirt's save and restore remove cap and weight; a restore that lets the guest run before
    its cap is set.
    """
    yield_frac = 0.3
    with guest() as job:
        job.start(yield_frac)
        cap_cores = job.cpu_cores * yield_frac
        job.save()
        job.restore(yield_frac=yield_frac)
        watched = job.watch(EVERY_S, WINDOW_S)
        idle_cores = lab.idle_cores(node)
        found = job.progress()[job.name].cap_cores
    assert found == pytest.approx(cap_cores, rel=0.02, abs=0.005), f"{node.name}: read back"
    check_use(used_cores(watched, job.name), cap_cores, idle_cores, doubt)
