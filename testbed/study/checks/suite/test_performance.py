"""Performance figures of the lab's nodes, compared with the references of this machine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from testbed.lab.blocking import BlockingLabJob
from testbed.study.checks.fixtures import Measure
from testbed.study.checks.lab import LabUnderTest
from testbed.study.checks.suite.helpers import used_cores

pytestmark = [pytest.mark.hypervisor(), pytest.mark.usefixtures("node")]
EVERY_S = 0.02
WINDOW_S = 2.0


@pytest.mark.reference("start_s", "save_mib_per_s", "restore_mib_per_s")
def test_how_fast_guests_start_save_and_restore(
    guest: Callable[..., BlockingLabJob], lab: LabUnderTest, measure: Measure
) -> None:
    """Time from the command to the first progress of a new guest and of a restored one, and to a durable image.

    Broken by: QEMU that is probed again for every guest (54 s per start); a page cache that is written back only on a
    flush; a hypervisor's own limit on the speed of a save.
    """

    def trial() -> dict[str, float]:
        with guest() as job:
            started = job.start()
            saved = job.save()
            restored = job.restore()
        return {
            "start_s": started.start_s + started.first_progress_s,
            "save_mib_per_s": saved.image_mib / saved.save_s,
            "restore_mib_per_s": saved.image_mib / (restored.restore_s + restored.first_progress_s),
        }

    measure(trial, condition=f"{lab.small_mib} MiB")


@pytest.mark.reference("cap_error_points", "units_per_cpu_s")
def test_how_exact_a_cap_is_and_what_a_cpu_second_does(
    guest: Callable[..., BlockingLabJob], lab: LabUnderTest, measure: Measure
) -> None:
    """Distance of the CPU use from the cap, in percentage points of one core; and work units per second of CPU time.

    Broken by: a quota whose period is long for the window; guests that are emulated although they were accelerated
    when the reference was measured.
    """
    yield_frac = 0.4

    def trial() -> dict[str, float]:
        with guest() as job:
            job.start(yield_frac)
            watched = job.watch(EVERY_S, WINDOW_S)
        cpu_s, units = watched.cpu_s[job.name], watched.units[job.name]
        return {
            "cap_error_points": 100.0 * abs(used_cores(watched, job.name) - job.cpu_cores * yield_frac),
            "units_per_cpu_s": (units[-1] - units[0]) / (cpu_s[-1] - cpu_s[0]),
        }

    measure(trial, condition=f"cap {yield_frac:g} of {lab.cpus:g} cores")


@pytest.mark.reference("cap_response_s")
def test_how_soon_a_cap_is_in_force(guest: Callable[..., BlockingLabJob], lab: LabUnderTest, measure: Measure) -> None:
    """CPU time used beyond a lower cap after the command that set it, as seconds at the previous rate of use.

    Broken by: a quota with a long period, whose old slice is used up first; an agent that answers before it has set
    the cap.
    """
    high, low = 0.8, 0.2

    def trial() -> dict[str, float]:
        with guest() as job:
            job.start(high)
            low_cores = job.cpu_cores * low
            watched = job.watch(EVERY_S, 2 * WINDOW_S, ((WINDOW_S, low_cores),))
        begin_s = watched.cap_changes[0].begin_s
        cpu_s = watched.cpu_s[job.name]
        at_change = next(index for index, t_s in enumerate(watched.t_s) if t_s >= begin_s)
        excess = (cpu_s[-1] - cpu_s[at_change]) - low_cores * (watched.t_s[-1] - watched.t_s[at_change])
        before = (cpu_s[at_change] - cpu_s[0]) / (watched.t_s[at_change] - watched.t_s[0])
        return {"cap_response_s": max(0.0, excess / max(before - low_cores, 0.05 * job.cpu_cores))}

    measure(trial, condition=f"cap {high:g} to {low:g} of {lab.cpus:g} cores")
