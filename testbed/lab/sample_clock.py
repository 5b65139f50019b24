"""When a sample was taken, by the controller's clock, although only its node's clock was read."""

from __future__ import annotations

_BUCKET_NS = 300 * 10**9


class SampleClock:
    """Times of one node's samples, in the life of one agent.

    A sample says its node's monotonic time; it is heard some time later. The least difference between the two is that
    of the fastest delivery, and the clocks' own, so a sample is taken to have been made at its node's time plus the
    least difference that was seen in the last five to ten minutes. That is too late by at most the delivery time of
    the fastest message in that while, and by what the clocks drift apart meanwhile (both are steered: some ms); it
    does not depend on how late this sample comes. A sample that is taken once more is stamped once: the second is told
    to be a repetition, as samples come in order.
    """

    def __init__(self) -> None:
        self._last_ns = -1
        self._since_ns = 0  # beginning of the bucket that fills
        self._least_ns: int | None = None  # in that bucket
        self._before_ns: int | None = None  # in the one before it

    def taken_ns(self, mono_ns: int, heard_ns: int, *, late: bool) -> int | None:
        """Return the controller's monotonic time of a sample; None for a repetition, and for what cannot be placed.

        `mono_ns` is the node's time of the sample, `heard_ns` the controller's time now. A `late` one says nothing of
        the difference of the clocks, and cannot be placed when no other came before.
        """
        if mono_ns <= self._last_ns:
            return None
        if not late:
            self._note(heard_ns - mono_ns, heard_ns)
        known_ns = [least_ns for least_ns in (self._before_ns, self._least_ns) if least_ns is not None]
        if not known_ns:
            return None
        self._last_ns = mono_ns
        return mono_ns + min(known_ns)

    def _note(self, difference_ns: int, heard_ns: int) -> None:
        if self._least_ns is None or heard_ns - self._since_ns >= _BUCKET_NS:
            self._before_ns, self._least_ns, self._since_ns = self._least_ns, difference_ns, heard_ns
        else:
            self._least_ns = min(self._least_ns, difference_ns)
