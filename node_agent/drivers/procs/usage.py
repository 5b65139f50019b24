"""Resource usage of processes, read from the kernel."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterable
from dataclasses import dataclass

from node_agent.drivers.caps.duty import process_clock
from testbed.host.kernel_files import read_kernel_file

_MIB = 1 << 20
_PAGE = resource.getpagesize()


@dataclass(frozen=True, slots=True)
class Usage:
    """Sums over processes; times and bytes since their start."""

    cpu_s: float = 0.0
    rss_mib: float = 0.0
    read_mib: float = 0.0
    written_mib: float = 0.0


def read_usage(pids: Iterable[int]) -> Usage | None:
    """Read the usage of live processes, or None if one of them has ended meanwhile."""
    cpu_s, pages, read, written = 0.0, 0, 0, 0
    try:
        for pid in pids:
            cpu_s += time.clock_gettime(process_clock(pid))
            pages += int(read_kernel_file(f"/proc/{pid}/statm").split()[1])
            counters = dict(line.split(": ") for line in read_kernel_file(f"/proc/{pid}/io").splitlines())
            read += int(counters["read_bytes"])
            written += int(counters["write_bytes"])
    except (OSError, IndexError, KeyError):
        return None
    return Usage(cpu_s, pages * _PAGE / _MIB, read / _MIB, written / _MIB)
