"""The shipping position of a run directory's points, `shipped.json`, and the lock of shippers, `shipped.lock`.

The position is updated atomically after an acknowledgement of the server, so that a crash never leaves it ahead of the
server. If it is behind, points are shipped again, which does not change the database. Therefore it need not be durable
after every batch, which on a busy disk would take longer than the server. It is made durable once per second, and when
all points are shipped.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from testbed.errors import RunError, UserError
from testbed.host.locks import try_lock
from testbed.measure.influx_address import Address

POSITION_FILE = "shipped.json"
LOCK_FILE = "shipped.lock"
_POLL_S = 0.02
_DURABLE_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Shipped:
    """A position: every point before `offset_bytes` of segment `segment`, counted from 1, was shipped or refused.

    These are `read_points` points, of which the server refused `refused_points`; the refused points are the first
    `refused_bytes` of the file of refused points.
    """

    segment: int = 1
    offset_bytes: int = 0
    read_points: int = 0
    refused_points: int = 0
    refused_bytes: int = 0

    @property
    def shipped_points(self) -> int:
        """Points that the server acknowledged."""
        return self.read_points - self.refused_points


class BusyError(RunError):
    """Another process or thread is shipping the same run."""


class ShippingPosition:
    """The position of one shipper to `address` in one run directory; several shippers of a run take turns."""

    def __init__(self, run: Path, address: Address) -> None:
        self._run = run
        self._address = address
        self._number = 1  # position of the address in the file, from 1 on
        self._all: dict[Address, Shipped] = {}  # the content of the file
        self._reached: Shipped | None = None  # ahead of the file if the disk is full
        self._durable_s = 0.0  # time of the last sync, on the monotonic clock
        self._is_durable = True
        try:
            self._lock = os.open(run / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UserError(f"{run / LOCK_FILE}: cannot write: {error.strerror}; expected a run directory") from error

    def close(self) -> None:
        """Close the lock file; a second call does nothing."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def refused_path(self) -> Path:
        """The file of refused points: refused.lp, or refused.2.lp for the second address a run was shipped to."""
        return self._run / ("refused.lp" if self._number == 1 else f"refused.{self._number}.lp")

    @contextmanager
    def turn(self, within_s: float) -> Iterator[Shipped]:
        """Hold the run's lock, and yield the position; raises `BusyError` if others hold it for `within_s`."""
        ends_s = time.monotonic() + within_s
        while not try_lock(self._lock):
            if time.monotonic() >= ends_s:
                raise BusyError(f"{self._run}: another shipper is at work")
            time.sleep(_POLL_S)
        try:
            yield self._find()
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def save(self, shipped: Shipped) -> None:
        """Save the position; the caller holds the lock. After an `OSError` (full disk) this object still has it."""
        self._reached = shipped
        entries = [{**asdict(address), **asdict(at)} for address, at in {**self._all, self._address: shipped}.items()]
        part = self._run / f"{POSITION_FILE}.part"
        with part.open("w", encoding="utf-8") as file:
            json.dump({"shipped_to": entries}, file, indent=1)
            file.write("\n")
            file.flush()
            self._is_durable = False
            if time.monotonic() >= self._durable_s + _DURABLE_EVERY_S:
                self._make_durable(file.fileno())
        part.replace(self._run / POSITION_FILE)
        self._all[self._address] = shipped

    def make_durable(self) -> None:
        """Make the saved position durable; the caller holds the lock. Raises `OSError`."""
        if not self._is_durable:
            with (self._run / POSITION_FILE).open("rb") as file:
                self._make_durable(file.fileno())

    def _make_durable(self, fd: int) -> None:
        os.fsync(fd)
        self._is_durable = True
        self._durable_s = time.monotonic()

    def refuse(self, shipped: Shipped, text: bytes) -> int:
        """Append `text` durably after the refused points of `shipped`; return the file's new length in bytes."""
        with self.refused_path.open("ab") as file:
            file.truncate(shipped.refused_bytes)  # points beyond it are left from a crash, and are shipped again
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        return shipped.refused_bytes + len(text)

    def _find(self) -> Shipped:
        """Return the position on disk, or this shipper's unsaved later one if no other shipper has moved the former."""
        found = read_shipped(self._run)
        if self._reached is None or found.get(self._address) != self._all.get(self._address):
            self._reached = found.get(self._address, Shipped())
        self._all = found
        known = list(found)
        self._number = 1 + (known.index(self._address) if self._address in found else len(known))
        return self._reached


def read_shipped(run: Path) -> dict[Address, Shipped]:
    """Return the content of shipped.json: the position of each address, in the order of their first shipping.

    A missing or unreadable file counts as empty: all points are shipped again.
    """
    found: dict[Address, Shipped] = {}
    try:
        for entry in json.loads((run / POSITION_FILE).read_text(encoding="utf-8"))["shipped_to"]:
            address = Address(*(str(entry.pop(name)) for name in ("url", "org", "bucket")))
            shipped = Shipped(**entry)
            numbers = asdict(shipped).values()
            if shipped.segment < 1 or not all(type(number) is int and number >= 0 for number in numbers):
                return {}
            found[address] = shipped
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
    return found
