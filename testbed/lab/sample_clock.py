"""Times of samples on the controller's clock, derived from their node's clock."""

from __future__ import annotations

_BUCKET_NS = 300 * 10**9


class SampleClock:
    """Times of one node's samples, in the life of one agent.

    A sample has its node's monotonic time, and is received some time later. The least difference between the two is the
    offset of the clocks plus the delay of the fastest delivery. So the time of a sample is its node's time plus the
    least difference of the last five to ten minutes. This is too late by at most the delay of the fastest message in
    that period, and the clocks' drift meanwhile (both are steered: a few ms); it does not depend on the delay of this
    sample. A repeated sample gets a time only once: as samples come in order, a second one is recognised as a
    repetition.
    """

    def __init__(self) -> None:
        self._last_ns = -1
        self._since_ns = 0  # beginning of the bucket that fills
        self._least_ns: int | None = None  # in that bucket
        self._before_ns: int | None = None  # in the one before it

    def taken_ns(self, mono_ns: int, heard_ns: int, *, late: bool) -> int | None:
        """Return the controller's monotonic time of a sample; None for a repetition, and for an unknown time.

        `mono_ns` is the node's time of the sample, `heard_ns` the controller's time now. A `late` one gives no
        information on the clocks' difference, and its time is unknown without an earlier sample.
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
