"""Converts the times of samples from their node's clock to the controller's clock."""

from __future__ import annotations

_BUCKET_NS = 300 * 10**9


class SampleClock:
    """Conversion of the times of one node's samples, for the life of one agent.

    A sample has its node's monotonic time, and is received some time later. The least difference between the two times
    is the offset of the clocks plus the delay of the fastest delivery. So the time of a sample is its node's time plus
    the least difference of the last five to ten minutes. The result is too late by at most the delay of the fastest
    message in that period, and the clocks' drift meanwhile (both clocks are steered: a few ms). It does not depend on
    the delay of this sample. A repeated sample gets a time only once: samples arrive in order, so a repetition is
    recognised by its time.
    """

    def __init__(self) -> None:
        self._last_ns = -1
        self._since_ns = 0  # beginning of the current bucket
        self._least_ns: int | None = None  # least difference in the current bucket
        self._before_ns: int | None = None  # least difference in the previous bucket

    def taken_ns(self, mono_ns: int, heard_ns: int, *, late: bool) -> int | None:
        """Return the controller's monotonic time of a sample; None for a repetition, and for an unknown time.

        `mono_ns` is the node's time of the sample, `heard_ns` the controller's time now. A `late` sample gives no
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
