"""Watches virtual machines from outside, to guess for whose messages they wait (`testbed.shares.traffic`).

One thread samples all watched guests `LOOKS_PER_S` times per second. It reads the scheduler's counters of the virtual
CPUs' threads, and the frames that were received at the tap.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from node_agent.drivers.protocol import DriverError
from node_agent.drivers.virt.domain import mac_of
from node_agent.drivers.virt.groups import VcpuGroups
from node_agent.drivers.virt.tap import Tap
from testbed.host.kernel_files import read_kernel_file
from testbed.shares.traffic import Slice, TrafficWaits

LOOKS_PER_S = 40.0
_log = logging.getLogger(__name__)


def ranks_at(addresses: Sequence[str], ranks: int) -> dict[bytes, int]:
    """Return the rank of each hardware address, for the addresses of a job's guests by rank; raises `DriverError`."""
    if len(addresses) != ranks:
        raise DriverError(f"{len(addresses)} addresses: expected one for each of {ranks} ranks")
    try:
        return {bytes.fromhex(mac_of(address).replace(":", "")): rank for rank, address in enumerate(addresses)}
    except ValueError as error:
        raise DriverError(f"addresses of ranks: {error}: expected such as 10.77.1.5/16") from error


class _Watched:
    """One guest; `works` returns whether it is neither held nor being moved."""

    def __init__(self, times: Sequence[Path], tap: Tap, ranks: int, works: Callable[[], bool]) -> None:
        self.waits = TrafficWaits(ranks)
        self._times = times
        self._tap = tap
        self._works = works
        self._at_ns, self._used_ns = time.monotonic_ns(), self._used()

    def _used(self) -> list[tuple[int, int]]:
        """Return run time and run-queue time of each virtual CPU, in ns; raises `OSError` once it is gone."""
        counts = (read_kernel_file(path).split() for path in self._times)
        return [(int(ran), int(wanted)) for ran, wanted, *_ in counts]

    def look(self) -> None:
        """Take the slice since the last call. Raises `OSError` or `ValueError` once the guest is gone."""
        at_ns, used_ns, received = time.monotonic_ns(), self._used(), self._tap.received()
        elapsed_ns = at_ns - self._at_ns
        # of several virtual CPUs the one that was blocked for the shortest time: while any works, the guest does
        spent = [
            (elapsed_ns - (ran - ran_before) - (wanted - wanted_before), ran - ran_before)
            for (ran, wanted), (ran_before, wanted_before) in zip(used_ns, self._used_ns, strict=True)
        ]
        blocked_ns, ran_ns = min(spent)
        self._at_ns, self._used_ns = at_ns, used_ns
        if self._works():
            self.waits.take(Slice(elapsed_ns / 1e9, ran_ns / 1e9, max(blocked_ns, 0) / 1e9, received))
        else:
            self.waits.forget()

    def close(self) -> None:
        self._tap.close()


class TrafficWatch:
    """The watched guests of a node, by name. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def add(
        self, guest: str, vcpus: VcpuGroups, tap: str, ranks: Mapping[bytes, int], works: Callable[[], bool]
    ) -> None:
        """Watch a guest from now on: its virtual CPUs, and the tap of that name; raises `DriverError`."""
        try:
            counted = Tap(tap, vcpus.pid, ranks)
        except OSError as error:
            raise DriverError(f"guest {guest}: tap {tap}: {error}") from error
        try:
            watched = _Watched(vcpus.times, counted, len(ranks), works)
        except (OSError, ValueError) as error:
            counted.close()
            raise DriverError(f"guest {guest}: its virtual CPUs: {error}") from error
        with self._lock:
            if (before := self._watched.pop(guest, None)) is not None:
                before.close()
            self._watched[guest] = watched
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="traffic of guests", daemon=True)
                self._thread.start()

    def waits_s(self, guest: str) -> tuple[float, ...]:
        """Return the guess by source rank since the guest is watched, empty for one that is not."""
        watched = self._watched.get(guest)
        return () if watched is None else watched.waits.waits_s

    def close(self) -> None:
        """Watch no guest any more."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            for watched in self._watched.values():
                watched.close()
            self._watched.clear()

    def _run(self) -> None:
        while not self._end.wait(1 / LOOKS_PER_S):
            with self._lock:
                for guest, watched in list(self._watched.items()):
                    try:
                        watched.look()
                    except (OSError, ValueError, IndexError) as error:
                        _log.debug("guest %s is not watched any more: %s", guest, error)
                        del self._watched[guest]
                        watched.close()
