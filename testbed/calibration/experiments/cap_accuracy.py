"""How exactly a cap holds: CPU time requested against used, over windows from one period of a cap to a hundred."""

from __future__ import annotations

from testbed.calibration.bench import Bench
from testbed.calibration.experiment import Condition, LabFacts, Observation
from testbed.calibration.experiments.felt import first_progress_s
from testbed.calibration.room import guest_mib, room_cores, vcpu_counts, why_no_caps
from testbed.calibration.watched import window_use
from testbed.errors import RunError

WINDOWS_S = (0.1, 1.0, 10.0)
_EVERY_S = 0.02
_SETTLE_S = 0.3  # three periods of a cap
_ITERATION_S = 0.1  # several threads wait for each other at its end, so it is long
# (cap, longest window): long windows take most of the time, so the extremes have them
_FULL = ((0.05, 10.0), (0.25, 1.0), (0.5, 1.0), (0.75, 1.0), (0.95, 10.0))
_FULL_SEVERAL = ((0.25, 1.0), (0.9, 10.0))
_QUICK = ((0.1, 1.0), (0.5, 1.0), (0.9, 1.0))
_QUICK_SEVERAL = ((0.5, 1.0),)


class CapAccuracy:
    """One guest that could use more at each cap, watched for a little longer than the longest window."""

    name = "cap-accuracy"
    about = "CPU time requested by a cap against used, over windows of 0.1, 1 and 10 s"

    def why_not(self, lab: LabFacts) -> str:
        """See `Experiment.why_not`."""
        return why_no_caps(lab)

    def conditions(self, lab: LabFacts, *, quick: bool) -> list[Observation]:
        """Caps from 5 to 95 % of the guest's virtual CPUs, as far as a node has cores for them.

        `longest_window_s` says which windows a trial has: all of `WINDOWS_S` up to that one.
        """
        one, several = (_QUICK, _QUICK_SEVERAL) if quick else (_FULL, _FULL_SEVERAL)
        room = room_cores(lab) + 1e-9
        found: list[Observation] = [
            {"cap_frac": cap_frac, "vcpus": vcpus, "longest_window_s": longest_s}
            for vcpus in vcpu_counts(lab)
            for cap_frac, longest_s in (one if vcpus == 1 else several)
            if cap_frac * vcpus <= room
        ]
        return found

    def expected_s(self, condition: Condition, lab: LabFacts) -> float:
        """See `Experiment.expected_s`."""
        return first_progress_s(lab) + _SETTLE_S + _for_s(float(condition["longest_window_s"]))

    async def run(self, bench: Bench, condition: Condition) -> list[Observation]:
        """Return one observation a window: `used_cores` is the median over all windows of that length.

        `worst_error_frac` and `p95_error_frac` are errors of single windows, of either sign, in parts of the guest's
        virtual CPUs (as `cap_frac` is); `windows` overlap. `read_back_cores` is the cap as the node tells it.
        """
        lab = LabFacts(bench.scenario, bench.facts)
        vcpus, longest_s = int(condition["vcpus"]), float(condition["longest_window_s"])
        requested_cores = float(condition["cap_frac"]) * vcpus
        cpu_cores = min(float(vcpus), room_cores(lab))
        async with bench.specimen(
            memory_mib=guest_mib(lab), cpu_cores=cpu_cores, program="eatcpu", iteration_s=_ITERATION_S
        ) as job:
            await job.start()
            capped = await job.set_yield(requested_cores / cpu_cores)
            watched = await bench.watch(job.nodes[0], job.guests, _EVERY_S, _SETTLE_S + _for_s(longest_s))
        first = next((index for index, t_s in enumerate(watched.t_s) if t_s >= _SETTLE_S), len(watched.t_s))
        t_s, cpu_s = watched.t_s[first:], watched.cpu_s[job.guests[0]][first:]
        found: list[Observation] = []
        for window_s in (window for window in WINDOWS_S if window <= longest_s):
            use = window_use(t_s, cpu_s, window_s, requested_cores)
            if use is None:
                raise RunError(f"no window of {window_s:g} s in {len(t_s)} samples: the agent could not sample in time")
            found.append(
                {
                    "window_s": window_s,
                    "requested_cores": requested_cores,
                    "used_cores": use.used_cores,
                    "worst_error_frac": use.worst_error_cores / vcpus,
                    "p95_error_frac": use.p95_error_cores / vcpus,
                    "windows": use.windows,
                    "read_back_cores": capped.caps_cores[0],
                }
            )
        return found


def _for_s(longest_window_s: float) -> float:
    """Return how long to watch: two windows if that is not long, and some slides of the longest."""
    return max(2.2, longest_window_s * 1.02 + 0.2)


EXPERIMENT = CapAccuracy()
