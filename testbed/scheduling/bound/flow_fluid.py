"""The stretch bound for one fluid machine that is as fast as all nodes together: each job can use all of it.

On this machine, earliest deadline first meets all deadlines if any schedule does. That schedule is built job by job,
in the order of deadlines: each job fills the earliest time after its release that earlier deadlines left free.
When a job ends too late, take the jobs scheduled so far that were released since the machine was last free. In any
order they keep the machine busy until then, so that one of them must end then or later.
"""

from __future__ import annotations

import numpy as np

from testbed.scheduling.bound.flow_network import Floats, Ints
from testbed.scheduling.compiler import kernel


@kernel
def fluid_stretch(release_s: Floats, least_s: Floats, machine_s: Floats, at_least: float, accuracy: float) -> float:
    """Return a stretch that no schedule of one machine beats, or `at_least`; (1 + `accuracy`) times it can be met.

    Jobs (J,), sorted by release date, take the machine `machine_s`, > 0; their stretch is turnaround / `least_s`.
    """
    stretch = at_least
    while True:
        trial = stretch * (1.0 + accuracy)
        forced = _forced_stretch(release_s, least_s, machine_s, release_s + trial * least_s)
        if forced <= trial:
            return stretch
        stretch = forced


@kernel
def _forced_stretch(release_s: Floats, least_s: Floats, machine_s: Floats, deadline_s: Floats) -> float:
    """Return the stretch forced by the jobs that keep the machine busy past the worst missed deadline, or 0."""
    jobs = release_s.size
    slot_end_s = np.empty(jobs)  # slot j is the time from release j to the next
    slot_end_s[:-1] = release_s[1:]
    slot_end_s[-1] = np.inf
    free_s = release_s.copy()  # where the free part of a slot begins
    following = np.arange(jobs + 1)  # (J + 1,) union-find: a slot points towards the next slot that is not full
    order = np.argsort(deadline_s, kind="mergesort")
    worst, worst_place, busy_from_s = 0.0, -1, 0.0
    for place, job in enumerate(order):
        slot = _fill(free_s, slot_end_s, following, job, machine_s[job])
        late = (free_s[slot] - deadline_s[job]) / least_s[job]
        if late > worst:
            worst, worst_place = late, place
            while slot > 0 and free_s[slot - 1] >= slot_end_s[slot - 1]:
                slot -= 1
            busy_from_s = release_s[slot]
    if worst_place < 0:
        return 0.0
    end_s = busy_from_s
    for job in order[: worst_place + 1]:
        if release_s[job] >= busy_from_s:
            end_s += machine_s[job]
    forced = np.inf
    for job in order[: worst_place + 1]:
        if release_s[job] >= busy_from_s:
            forced = min(forced, (end_s - release_s[job]) / least_s[job])
    return forced


@kernel
def _fill(free_s: Floats, slot_end_s: Floats, following: Ints, slot: int, amount_s: float) -> int:
    """Take `amount_s` of the free time from `slot` on; return the slot in which it ends."""
    while True:
        while following[slot] != slot:  # path halving, for later searches
            following[slot] = following[following[slot]]
            slot = following[slot]
        if amount_s <= slot_end_s[slot] - free_s[slot]:
            free_s[slot] += amount_s
            return slot
        amount_s -= slot_end_s[slot] - free_s[slot]
        free_s[slot] = slot_end_s[slot]
        following[slot] = slot + 1
