"""What psutil says of the machine, once a second."""

from __future__ import annotations

import time

import psutil

from testbed.bus.messages import GuestSample, Telemetry

_MIB = 1 << 20


class NodeSampler:
    """Reads counters of the machine and of this process; the first sample's `cpu_frac` is since construction."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._self = psutil.Process()
        psutil.cpu_percent(interval=None)

    def sample(self, guests: tuple[GuestSample, ...]) -> Telemetry:
        """Return one record; about a millisecond of CPU time."""
        disk = psutil.disk_io_counters(nowrap=False)
        net = psutil.net_io_counters(nowrap=False)
        cpu = self._self.cpu_times()
        return Telemetry(
            node=self._node,
            mono_ns=time.monotonic_ns(),
            cpu_frac=psutil.cpu_percent(interval=None) / 100,
            memory_used_mib=psutil.virtual_memory().used / _MIB,
            disk_read_mib=disk.read_bytes / _MIB if disk else 0.0,
            disk_written_mib=disk.write_bytes / _MIB if disk else 0.0,
            net_received_mib=net.bytes_recv / _MIB if net else 0.0,
            net_sent_mib=net.bytes_sent / _MIB if net else 0.0,
            agent_cpu_s=cpu.user + cpu.system,
            agent_rss_mib=self._self.memory_info().rss / _MIB,
            guests=guests,
        )
