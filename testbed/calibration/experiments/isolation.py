"""What neighbours cost a guest that keeps its cap: caches and memory bandwidth are shared although the CPU is not."""

from __future__ import annotations

import asyncio
import contextlib

from testbed.calibration.bench import Bench
from testbed.calibration.experiment import Condition, LabFacts, Observation
from testbed.calibration.experiments.felt import first_progress_s
from testbed.calibration.progress_rate import SETTLE_S, WINDOW_S, measure_rate
from testbed.calibration.room import down, guest_mib, most_guests, room_cores, why_no_caps
from testbed.calibration.specimen import Specimen

_MOST = 3
_WINDOW_S = 1.5 * WINDOW_S
_ITERATION_S = 0.005


class Isolation:
    """One guest at a cap: alone, next to neighbours that compute at the same cap, and alone again."""

    name = "isolation"
    about = "rate of progress of a guest at its cap, next to neighbours relative to alone"

    def why_not(self, lab: LabFacts) -> str:
        """See `Experiment.why_not`."""
        if most_guests(lab) == 1:
            return f"a node has {lab.memory_mib} MiB: expected room for two guests of {guest_mib(lab)} MiB"
        return why_no_caps(lab)

    def conditions(self, lab: LabFacts, *, quick: bool) -> list[Observation]:
        """As many neighbours as fit, a single one with greater caps, and none, which tells what can be resolved.

        All caps together fit the cores of a node, and all guests its memory.
        """
        most = min(_MOST, most_guests(lab) - 1)
        crowded = _cap(lab, most + 1)
        found: list[Observation] = [{"cap_frac": crowded, "neighbours": most}]
        if not quick:
            found.append({"cap_frac": crowded, "neighbours": 0})
            if most > 1:
                found.append({"cap_frac": _cap(lab, 2), "neighbours": 1})
        return found

    def expected_s(self, condition: Condition, lab: LabFacts) -> float:
        """See `Experiment.expected_s`."""
        return first_progress_s(lab) * (1 + int(condition["neighbours"])) + 3 * (_WINDOW_S + SETTLE_S + 0.5)

    async def run(self, bench: Bench, condition: Condition) -> list[Observation]:
        """Return one observation: `alone_units_per_s` is the mean of the rates before neighbours came and after.

        `drift_frac` is how much greater the second was than the first. `relative_used` is the CPU time used next to
        neighbours relative to alone: it tells a share that shrank from work that slowed.
        """
        lab = LabFacts(bench.scenario, bench.facts)
        cap_cores, neighbours = float(condition["cap_frac"]), int(condition["neighbours"])

        def guest() -> Specimen:
            return bench.specimen(
                memory_mib=guest_mib(lab), cpu_cores=cap_cores, program="eatcpu", iteration_s=_ITERATION_S / cap_cores
            )

        async with guest() as job:
            await job.start()
            before = await measure_rate(bench, job, _WINDOW_S)
            async with contextlib.AsyncExitStack() as stack:
                others = [await stack.enter_async_context(guest()) for _ in range(neighbours)]
                await asyncio.gather(*(other.start() for other in others))
                among = await measure_rate(bench, job, _WINDOW_S)
            after = await measure_rate(bench, job, _WINDOW_S)
        alone = (before.units_per_s + after.units_per_s) / 2
        return [
            {
                "units_per_s": among.units_per_s,
                "alone_units_per_s": alone,
                "relative_rate": among.units_per_s / alone,
                "relative_used": among.used_cores / ((before.used_cores + after.used_cores) / 2),
                "drift_frac": after.units_per_s / before.units_per_s - 1.0,
            }
        ]


def _cap(lab: LabFacts, guests: int) -> float:
    """Return the part of one virtual CPU that each of so many guests gets."""
    return min(1.0, down(room_cores(lab) / guests))


EXPERIMENT = Isolation()
