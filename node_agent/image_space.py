"""Disk space for images on a node: free space within the budget, less the reservations of saves in progress."""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass

from node_agent.images import ImageStore
from testbed.bus.no_room import NoRoomError
from testbed.errors import TestbedError

_MIB = 1 << 20
# Messages of programs (`node_agent.programs.image`), the kernel and hypervisors when an image did not fit.
_FULL = ("MiB to write, ", os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))


def tells_full_disk(error: TestbedError) -> bool:
    """Return whether a save failed because the disk was full or a quota was reached."""
    return any(words in str(error) for words in _FULL)


@dataclass(frozen=True, slots=True)
class _Reservation:
    image: str
    bytes: int


class ImageSpace:
    """The space for images in a store: reservations of saves and transfers in progress, and the sizes of images.

    `budget_mib` limits the sum of all images; 0 is no budget. With `stands_for_more`, images are small files that
    represent the size in their reports, as for simulated guests: then only the budget limits them.
    """

    def __init__(self, store: ImageStore, budget_mib: int = 0) -> None:
        self._store = store
        self._budget_mib = budget_mib
        self._reserved: dict[str, _Reservation] = {}
        self._sizes: dict[str, int] = {}  # of images by name, as their reports say
        self.stands_for_more = False

    def free_mib(self) -> int | None:
        """Return the free space in MiB, None without any limit; a file counts once it is completely written."""
        free = self._free()
        return None if free is None else max(0, free) // _MIB

    def reserve(self, holder: str, image: str, mib: int) -> None:
        """Reserve space for an image until `release` or `written`; raises `NoRoomError` if there is not enough.

        A holder has one reservation: a second one replaces the first.
        """
        self.release(holder)
        free = self._free(image)
        if free is not None:
            free = max(0, free - sum(each.bytes for each in self._reserved.values() if each.image != image))
            if free < mib * _MIB:
                raise self._error(image, mib, free // _MIB)
        self._reserved[holder] = _Reservation(image, mib * _MIB)

    def release(self, holder: str) -> None:
        """Cancel the reservation of a holder, if any."""
        self._reserved.pop(holder, None)

    def written(self, holder: str, image: str, size: int) -> None:
        """Note that an image is complete, with `size` bytes by its report."""
        self.release(holder)
        self._sizes[image] = size

    def refusal(self, image: str, mib: int, reason: str) -> NoRoomError:
        """Return the error for an image that did not fit although its reservation had succeeded."""
        return self._error(image, mib, self.free_mib() or 0, f": {reason}")

    def _error(self, image: str, needed_mib: int, free_mib: int, more: str = "") -> NoRoomError:
        budget = f", whose budget is {self._budget_mib} MiB" if self._budget_mib else ""
        return NoRoomError(image, f"{self._store.folder}{budget}{more}", needed_mib, free_mib)

    def _free(self, coming: str = "") -> int | None:
        """Return the free space in bytes as if no byte of `coming` and of other writes in progress were written yet."""
        under_way = {coming, *(each.image for each in self._reserved.values())}
        limits = []
        with contextlib.suppress(OSError):
            files = self._files()
            self._sizes = {name: size for name, size in self._sizes.items() if name in files}
            if not self.stands_for_more:
                disk = os.statvfs(self._store.folder)
                begun = sum(stat.st_blocks * 512 for name, stat in files.items() if name in under_way)
                limits.append(disk.f_bavail * disk.f_frsize + begun)
            if self._budget_mib:
                sizes = [self._sizes.get(name, stat.st_size) for name, stat in files.items() if name not in under_way]
                limits.append(self._budget_mib * _MIB - sum(sizes))
            return min(limits, default=None)
        return 0  # the folder cannot be read

    def _files(self) -> dict[str, os.stat_result]:
        """Return the images of the store by name, and those that are not complete by the names that they will have."""
        found = {}
        for path in self._store.all():
            with contextlib.suppress(FileNotFoundError):
                found[path.name.removesuffix(".part")] = path.stat()
        return found
