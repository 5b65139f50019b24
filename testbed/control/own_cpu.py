"""Records the CPU time of the controller and of a broker that it started, to separate this load from other load."""

from __future__ import annotations

import asyncio
import time

import psutil

from testbed.control.recorder import Recorder

_EVERY_S = 1.0
_BROKER = "mosquitto"  # the embedded broker runs in this process


class OwnCpu:
    """Writes one point per second with the CPU times."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        children = psutil.Process().children()
        self._broker = next((child for child in children if _name(child) == _BROKER), None)

    async def run(self) -> None:
        """Write points until cancelled."""
        while True:
            fields = {"cpu_s": time.process_time(), "broker_cpu_s": self._broker_cpu_s()}
            self._recorder.point("controller", {}, fields)
            await asyncio.sleep(_EVERY_S)

    def _broker_cpu_s(self) -> float:
        if self._broker is None:
            return 0.0
        try:
            times = self._broker.cpu_times()
        except psutil.Error:  # the process has ended: a broker that was started again is not measured
            return 0.0
        return float(times.user + times.system)


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return ""
