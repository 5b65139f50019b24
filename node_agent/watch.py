"""CPU time and work units of some guests, sampled at fixed times while their caps change at fixed times.

The samples are taken in a thread of their own: the event loop may be late by milliseconds, and must not be kept busy.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from node_agent.drivers.protocol import DriverError, Meter
from testbed.bus.messages import MAX_WATCH_SAMPLES, Watch

SetCap = Callable[[str, float], Awaitable[float]]


@dataclass(slots=True)
class _Samples:
    t_s: list[float] = field(default_factory=list)
    cpu_s: dict[str, list[float]] = field(default_factory=dict)
    units: dict[str, list[int]] = field(default_factory=dict)

    def take(self, t_s: float, meters: Mapping[str, Meter]) -> None:
        self.t_s.append(round(t_s, 6))
        for guest, meter in meters.items():
            reading = meter()
            self.cpu_s.setdefault(guest, []).append(round(reading.cpu_s, 9))
            self.units.setdefault(guest, []).append(reading.units)


def check(action: Watch) -> None:
    """Raise `DriverError` for an invalid watch, or one whose reply would be too large."""
    if not action.guests or len(set(action.guests)) != len(action.guests):
        raise DriverError(f"watch: guests = {list(action.guests)}: expected at least one, each once")
    samples = len(action.guests) * (_last_step(action) + 1)
    if samples > MAX_WATCH_SAMPLES:
        least_s = math.ceil(1e3 * action.for_s * len(action.guests) / (MAX_WATCH_SAMPLES - len(action.guests))) / 1e3
        raise DriverError(
            f"watch: {len(action.guests)} guests every {action.every_s:g} s for {action.for_s:g} s make {samples} "
            f"samples: expected at most {MAX_WATCH_SAMPLES}, as with every_s = {least_s:g}"
        )
    for change in action.caps:
        if change.after_s > action.for_s:
            raise DriverError(f"watch: a cap change after {change.after_s:g} s: expected at most {action.for_s:g} s")
        if unknown := sorted(set(change.caps) - set(action.guests)):
            raise DriverError(f"watch: a cap change of {', '.join(unknown)}: expected only guests that are watched")


async def watch(
    action: Watch, meters: Mapping[str, Meter], set_cap: SetCap, *, in_loop: bool = False
) -> dict[str, object]:
    """Do a checked watch; returns the data of its reply. Raises `DriverError`, also when a guest ends meanwhile.

    With `in_loop` the samples are taken in the loop: its time may be virtual, or the meters may be for its thread only.
    """
    loop = asyncio.get_running_loop()
    stop = threading.Event()
    samples = _Samples()
    begin_s = loop.time()
    executor = None if in_loop else ThreadPoolExecutor(1, thread_name_prefix="watch")
    sampling: asyncio.Future[None]
    if executor is None:
        sampling = loop.create_task(_sample_in_loop(action, meters, begin_s, samples), name="watch")
    else:
        sampling = loop.run_in_executor(executor, _sample, action, meters, loop.time, begin_s, samples, stop)
    changing = loop.create_task(_change(action, set_cap, begin_s), name="cap changes of a watch")
    try:
        _, cap_changes = await asyncio.gather(sampling, changing)
    finally:
        stop.set()
        changing.cancel()
        sampling.cancel()
        await asyncio.gather(sampling, changing, return_exceptions=True)
        if executor is not None:
            executor.shutdown(wait=False)
    return {"t_s": samples.t_s, "cpu_s": samples.cpu_s, "units": samples.units, "cap_changes": cap_changes}


def _last_step(action: Watch) -> int:
    return int(action.for_s / action.every_s + 1e-9)


def _waits(action: Watch, now_s: Callable[[], float], begin_s: float) -> Iterator[float]:
    """Yield the seconds to wait before each sample; samples that are missed are left out."""
    step, last = 0, _last_step(action)
    while step <= last:
        yield max(0.0, begin_s + step * action.every_s - now_s())
        step = max(step + 1, math.ceil((now_s() - begin_s) / action.every_s))


def _sample(
    action: Watch, meters: Mapping[str, Meter], now_s: Callable[[], float], begin_s: float, samples: _Samples,
    stop: threading.Event,
) -> None:  # fmt: skip
    for wait_s in _waits(action, now_s, begin_s):
        if stop.wait(wait_s):
            return
        samples.take(now_s() - begin_s, meters)


async def _sample_in_loop(action: Watch, meters: Mapping[str, Meter], begin_s: float, samples: _Samples) -> None:
    now_s = asyncio.get_running_loop().time
    for wait_s in _waits(action, now_s, begin_s):
        await asyncio.sleep(wait_s)
        samples.take(now_s() - begin_s, meters)


async def _change(action: Watch, set_cap: SetCap, begin_s: float) -> list[dict[str, object]]:
    now_s = asyncio.get_running_loop().time
    done: list[dict[str, object]] = []
    for change in sorted(action.caps, key=lambda change: change.after_s):
        await asyncio.sleep(max(0.0, begin_s + change.after_s - now_s()))
        from_s = now_s() - begin_s
        found = await asyncio.gather(*(set_cap(guest, cap_cores) for guest, cap_cores in change.caps.items()))
        done.append({
            "begin_s": round(from_s, 6), "end_s": round(now_s() - begin_s, 6),
            "caps": dict(zip(change.caps, found, strict=True)),
        })  # fmt: skip
    return done
