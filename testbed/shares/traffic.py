"""Estimate, from outside a guest, of the time for which it has waited for messages of each rank of its job.

In short slices of time the host measures for how long the virtual CPU ran, and for how long it was blocked (neither ran
nor was runnable). It also counts the bytes of messages from each other guest of the job. The estimate is a rule:

* The guest works in a slice in which it ran for at least `WORKING_FACTOR` times as long as it was blocked. All slices
  between two working slices are a wait. The time for which the guest ran in them, for instance to poll, is subtracted.
* The rank whose bytes came last in the wait has ended the wait, and all of it counts for this rank. When bytes of
  several ranks came in that last slice, they share the wait in proportion to their bytes.
* The last slice is the one in which the guest works again. But if the guest was hardly blocked in it (`BUSY_FRAC`), and
  bytes came in the slice before, those bytes have ended the wait, and the bytes of the last slice came too late.
* A wait without bytes is not a wait for a message. A wait shorter than `LEAST_WAIT_S` does not count.

The estimate is right if:

* a rank that waits sleeps. A rank that polls at full speed is never blocked, and seems to wait for no rank;
* the guest has one virtual CPU, or all of them wait together;
* a rank computes for longer than a slice between two waits. Several waits with shorter computations between them count
  as one, for the rank of the last bytes. On a busy machine slices may be some tenths of a second;
* the last message is the one that was missing. A message that came earlier in the wait was not;
* the host distinguishes guests by hardware addresses, and does not count bytes without content (TCP acknowledgements).
  Retransmissions, and MPI's internal messages, are counted.

The constants were chosen on two traces of emulated guests of `patterns`, a line of three and a ring of four.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WORKING_FACTOR = 2.0  # under emulation, polls of a waiting rank took up to a third of the time
BUSY_FRAC = 0.1
LEAST_WAIT_S = 0.03  # a guest that computes is blocked for some milliseconds now and then


@dataclass(frozen=True, slots=True)
class Slice:
    """A sample over a short time: its seconds, the guest's running and blocked seconds, and bytes by source rank."""

    elapsed_s: float
    ran_s: float
    blocked_s: float
    received_bytes: Sequence[int]


class TrafficWaits:
    """Sums the estimate for one guest; `waits_s` are seconds by source rank, as the layer below MPI would count them.

    They never decrease, and their sum never exceeds the time for which the guest did not run.
    """

    def __init__(self, ranks: int) -> None:
        self.waits_s: tuple[float, ...] = (0.0,) * ranks
        self._waited_s = 0.0  # of a wait that has not ended
        self._last: Sequence[int] = ()  # bytes by rank in the last slice of the wait that had any
        self._fresh = False  # the slice before had bytes

    def take(self, found: Slice) -> None:
        """Add the next slice; a slice of no time, or with negative counts, is ignored."""
        least = min(found.ran_s, found.blocked_s, *found.received_bytes)
        if not found.elapsed_s > 0 or least < 0:
            return
        ran_s = min(found.ran_s, found.elapsed_s)
        blocked_s = min(found.blocked_s, found.elapsed_s - ran_s)
        works = ran_s > 0 and ran_s >= WORKING_FACTOR * blocked_s
        self._waited_s += blocked_s if works else found.elapsed_s - ran_s
        came = any(found.received_bytes)
        too_late = self._fresh and blocked_s < BUSY_FRAC * (ran_s + blocked_s)
        if came and not too_late:
            self._last = tuple(found.received_bytes)
        self._fresh = came
        if works:
            self._end()

    def forget(self) -> None:
        """Discard the wait that has not ended, as the guest was held meanwhile."""
        self._waited_s, self._last, self._fresh = 0.0, (), False

    def _end(self) -> None:
        total = sum(self._last)
        if total and self._waited_s >= LEAST_WAIT_S:
            parts = [self._waited_s * each / total for each in self._last]
            self.waits_s = tuple(before + part for before, part in zip(self.waits_s, parts, strict=True))
        self.forget()
