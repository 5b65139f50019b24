"""Save and restore of jobs with measurements of each step, for several experiments."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from testbed.lab.job import LabJob
from testbed.study.calibration.experiments.felt import Pace, together
from testbed.study.calibration.values import Observation

SKEWS = ("hold_skew_s", "release_skew_s")


async def interrupt(
    specimens: Sequence[LabJob], *, store: str = "", cold: bool = False, nodes: Sequence[int] | None = None
) -> list[Observation]:
    """Save running jobs at once and restore them at once, on `nodes` if given; return one observation per job.

    The transfer of images to other nodes is part of `pause_s`. Skews are between the guests of a job.
    """
    loop = asyncio.get_running_loop()
    paces = await together([Pace.of(specimen) for specimen in specimens])

    async def save(specimen: LabJob) -> tuple[Observation, float]:
        saved = await specimen.save(store)
        observation: Observation = {
            "save_s": saved.save_s,
            "hold_s": saved.hold_s,
            "write_reported_s": saved.write_reported_s,
            "sync_reported_s": saved.sync_reported_s,
            "image_mib": saved.image_mib,
            "hold_skew_s": saved.hold_skew_s,
        }
        return observation, loop.time()

    async def restore(specimen: LabJob, observation: Observation, saved_s: float) -> Observation:
        pause_s = loop.time() - saved_s
        restored = await specimen.restore(cold=cold)
        if restored.cached_frac >= 0.0:  # False for NaN, which means unknown
            observation["cached_frac"] = restored.cached_frac
        return {
            **observation,
            "pause_s": pause_s,
            "restore_s": restored.restore_s,
            "release_skew_s": restored.release_skew_s,
            "first_progress_s": restored.first_progress_s,
            "penalty_s": float(observation["save_s"]) + restored.restore_s + restored.first_progress_s,
        }

    saved = await together([save(specimen) for specimen in specimens])
    if nodes is not None:
        await together([specimen.transfer(nodes) for specimen in specimens])
    found = await together([restore(specimen, *before) for specimen, before in zip(specimens, saved, strict=True)])
    felt = await together(
        [
            pace.felt_s(specimen, float(observation["pause_s"]))
            for specimen, pace, observation in zip(specimens, paces, found, strict=True)
        ]
    )
    return [{**observation, "felt_s": felt_s} for observation, felt_s in zip(found, felt, strict=True)]
