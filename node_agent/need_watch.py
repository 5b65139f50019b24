"""Estimates of the CPU needs of guests on this node, from telemetry samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from testbed.bus.messages import GuestSpec
from testbed.bus.telemetry import GuestSample, NeedSample
from testbed.needs.estimator import NeedEstimator, Window

RUNNING = "running"  # guest state in which the program computes


@dataclass(slots=True)
class _Watched:
    window_s: float
    estimator: NeedEstimator
    begin: tuple[float, GuestSample] | None = None  # time and sample at the beginning of the present window
    estimated: bool = False  # whether a window is complete
    memory_mib: float = 0.0  # largest resident memory so far


class NeedWatch:
    """Need estimators of the guests with `GuestSpec.watch_s`; all times are seconds of one clock."""

    def __init__(self) -> None:
        self._guests: dict[str, _Watched] = {}

    def begin(self, spec: GuestSpec) -> None:
        """Create the estimator of a guest, if its specification asks for one."""
        if spec.watch_s:
            estimator = NeedEstimator(spec.cpu_cores, float(spec.program.workers))
            self._guests[spec.guest] = _Watched(spec.watch_s, estimator)

    def gone(self, guest: str) -> None:
        """Remove the estimator of a guest that left the node."""
        self._guests.pop(guest, None)

    def estimated(self, samples: Sequence[GuestSample], now_s: float) -> tuple[GuestSample, ...]:
        """Add the samples of all guests to their windows; return the samples with the estimated needs."""
        return tuple(
            sample if (watched := self._guests.get(sample.guest)) is None else _look(watched, sample, now_s)
            for sample in samples
        )


def _look(watched: _Watched, sample: GuestSample, now_s: float) -> GuestSample:
    if sample.state != RUNNING or sample.cap_cores is None or not sample.units_done:
        watched.begin = None
    elif watched.begin is None or watched.begin[1].cap_cores != sample.cap_cores:
        watched.begin = now_s, sample
    elif now_s - watched.begin[0] >= watched.window_s:
        watched.estimator.observe(_window(*watched.begin, sample, now_s))
        watched.begin, watched.estimated = (now_s, sample), True
    watched.memory_mib = max(watched.memory_mib, sample.rss_mib)
    if not watched.estimated:
        return sample
    need = watched.estimator.need
    reported = NeedSample(
        cores=need.cores,
        least_cores=need.least_cores,
        most_cores=need.most_cores,
        booked_cores=need.booked_cores,
        memory_mib=watched.memory_mib,
        guessed=need.guessed,
    )
    return msgspec.structs.replace(sample, need=reported)


def _window(begin_s: float, before: GuestSample, after: GuestSample, now_s: float) -> Window:
    length_s = now_s - begin_s
    throttled_frac = None
    if before.throttled_s is not None and after.throttled_s is not None:
        throttled_frac = min(max(after.throttled_s - before.throttled_s, 0.0) / length_s, 1.0)
    return Window(after.cap_cores or 0.0, max(after.cpu_s - before.cpu_s, 0.0) / length_s, throttled_frac)
