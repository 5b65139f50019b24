"""Telemetry: psutil's counters of the machine, once per second, and the driver's samples of its guests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import psutil

from node_agent.speed import SpeedProbe
from testbed.bus.telemetry import ExchangeCounts, GuestSample, Telemetry

_MIB = 1 << 20


class GuestSampler:
    """Reads the driver's samples.

    Every read resets the driver's longest iteration. Reads for other purposes than telemetry keep it until the next
    telemetry sample.
    """

    def __init__(self, read: Callable[[], Sequence[GuestSample]]) -> None:
        self._read = read
        self._longest_s: dict[str, float] = {}

    def look(self) -> list[GuestSample]:
        """Return the usage of every guest so far."""
        samples = list(self._read())
        for sample in samples:
            if sample.supersteps is not None:
                known_s = self._longest_s.get(sample.guest, 0.0)
                self._longest_s[sample.guest] = max(known_s, sample.supersteps.longest_s)
        return samples

    def take(self) -> tuple[GuestSample, ...]:
        """Return the samples for telemetry, with the longest iteration since the last call."""
        samples = self.look()
        longest_s, self._longest_s = self._longest_s, {}
        return tuple(
            sample
            if sample.supersteps is None
            else msgspec.structs.replace(
                sample,
                supersteps=msgspec.structs.replace(sample.supersteps, longest_s=longest_s[sample.guest]),
            )
            for sample in samples
        )


class NodeSampler:
    """Reads counters of the machine and of this process; `cpu_frac` of the first sample counts from construction.

    `clock_s` is the monotonic clock of the event loop, which is the node's clock, or the virtual one of a dry run;
    `clock` identifies it. `speed` probes the cores; without it their speed is not reported. `image_free_mib` returns
    the free space for images. `daemons` are the processes that serve the node's guests.
    """

    def __init__(
        self, node: str, boot: str, clock: str, clock_s: Callable[[], float], speed: SpeedProbe | None = None,
        image_free_mib: Callable[[], int | None] = lambda: None, daemons: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self._node = node
        self._boot = boot
        self._clock = clock
        self._clock_s = clock_s
        self._speed = speed
        self._image_free_mib = image_free_mib
        self._daemons = [process for pid in daemons if (process := _process(pid)) is not None]
        self._self = psutil.Process()
        psutil.cpu_percent(interval=None)

    def sample(
        self, guests: tuple[GuestSample, ...], dropped: int = 0, refused: int = 0,
        exchange: ExchangeCounts | None = None,
    ) -> Telemetry:  # fmt: skip
        """Return one record; takes about 2 ms of CPU time."""
        disk = psutil.disk_io_counters(nowrap=False)
        net = psutil.net_io_counters(nowrap=False)
        cpu = self._self.cpu_times()
        return Telemetry(
            node=self._node,
            mono_ns=int(self._clock_s() * 1e9),
            cpu_frac=psutil.cpu_percent(interval=None) / 100,
            memory_used_mib=psutil.virtual_memory().used / _MIB,
            disk_read_mib=disk.read_bytes / _MIB if disk else 0.0,
            disk_written_mib=disk.write_bytes / _MIB if disk else 0.0,
            net_received_mib=net.bytes_recv / _MIB if net else 0.0,
            net_sent_mib=net.bytes_sent / _MIB if net else 0.0,
            agent_cpu_s=cpu.user + cpu.system,
            agent_rss_mib=self._self.memory_info().rss / _MIB,
            core_units_per_s=0.0 if self._speed is None else self._speed.units_per_s(),
            guests=guests,
            boot=self._boot,
            clock=self._clock,
            dropped=dropped,
            refused=refused,
            image_free_mib=self._image_free_mib(),
            exchange=exchange,
            daemons_cpu_s=sum(map(_cpu_s, self._daemons)),
        )


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.Error:
        return None


def _cpu_s(process: psutil.Process) -> float:
    """Return the CPU time of a process; 0 for a process that has ended."""
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)
