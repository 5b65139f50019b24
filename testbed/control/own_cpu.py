"""The CPU time of the controller and of a broker that it started: points that tell its own load from that of others."""

from __future__ import annotations

import asyncio
import time

import psutil

from testbed.control.recorder import Recorder

_EVERY_S = 1.0
_BROKER = "mosquitto"  # another broker runs in this process


class OwnCpu:
    """Records it once a second until it is cancelled."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        children = psutil.Process().children()
        self._broker = next((child for child in children if _name(child) == _BROKER), None)

    async def run(self) -> None:
        """See the class."""
        while True:
            fields = {"cpu_s": time.process_time(), "broker_cpu_s": self._broker_cpu_s()}
            self._recorder.point("controller", {}, fields)
            await asyncio.sleep(_EVERY_S)

    def _broker_cpu_s(self) -> float:
        if self._broker is None:
            return 0.0
        try:
            times = self._broker.cpu_times()
        except psutil.Error:  # it was started again: its time counts no more
            return 0.0
        return float(times.user + times.system)


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return ""
