"""For how long a guest has waited for messages of each rank of its job, guessed from outside it.

The host counts in short slices of time: for how long the virtual CPU ran, and for how long it was blocked, that is
neither ran nor wanted to; and how many bytes of messages came from each other guest of the job. The guess is a rule:

* The guest works in a slice in which it ran for at least `WORKING_FACTOR` times as long as it was blocked. All slices
  between two of these are a wait. All of it counts but the time that the guest ran, for instance to poll.
* The rank whose bytes came last in the wait has ended it, and is waited for during all of it. When bytes of several
  ranks came in that last slice, they share it in proportion to their bytes.
* The last slice is the one in which the guest works again. But if it was hardly blocked in it (`BUSY_FRAC`), and bytes
  came in the slice before, these have ended the wait, and those of the last slice came too late.
* A wait in which no bytes came is none for a message. One that is shorter than `LEAST_WAIT_S` is none at all.

It is right if:

* a rank that waits sleeps. One that polls at full speed is never blocked, and seems to wait for nobody;
* the guest has one virtual CPU, or all of them wait together;
* a rank computes for longer than a slice between two waits. Of shorter ones several are taken for one, which goes to
  the rank of the last bytes of all. On a busy machine slices may be some tenths of a second;
* the last message to come is the one that was missing. A message that came earlier in the wait was not;
* each pair of guests is told apart by hardware addresses, and bytes without content (TCP's acknowledgements) are not
  counted. Retransmissions, and what MPI says to itself, are.

The constants were chosen on two traces of emulated guests of `patterns`, a line of three and a ring of four.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WORKING_FACTOR = 2.0  # polls of a rank that waits took up to a third of the time under emulation
BUSY_FRAC = 0.1
LEAST_WAIT_S = 0.03  # a guest that computes is blocked for some milliseconds now and then


@dataclass(frozen=True, slots=True)
class Slice:
    """What was counted in a short time: seconds, those that the guest ran and was blocked, and bytes by source rank."""

    elapsed_s: float
    ran_s: float
    blocked_s: float
    received_bytes: Sequence[int]


class TrafficWaits:
    """Adds up the guess for one guest; `waits_s` are seconds by source rank, as the layer below MPI would count them.

    They never fall, and all together never exceed the time for which the guest did not run.
    """

    def __init__(self, ranks: int) -> None:
        self.waits_s: tuple[float, ...] = (0.0,) * ranks
        self._waited_s = 0.0  # of a wait that has not ended
        self._last: Sequence[int] = ()  # what came in the last slice of it in which something came
        self._fresh = False  # that was the last slice of all

    def take(self, found: Slice) -> None:
        """Take the next slice; one of no time, or with negative counts, tells nothing."""
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
        """Take the wait that has not ended for none: the guest was held meanwhile."""
        self._waited_s, self._last, self._fresh = 0.0, (), False

    def _end(self) -> None:
        total = sum(self._last)
        if total and self._waited_s >= LEAST_WAIT_S:
            parts = [self._waited_s * each / total for each in self._last]
            self.waits_s = tuple(before + part for before, part in zip(self.waits_s, parts, strict=True))
        self.forget()
