"""Sleep intervals of a rank that polls for messages: MPI's own wait functions poll at full speed.

`naps.h` has the same for the programs of virtual machines.
"""

from __future__ import annotations

_FIRST_S = 20e-6
_SHORT_S = 1e-3
LONGEST_S = 20e-3  # orders of the agent may wait that long, too
_LATE_FRAC = 0.05


class Naps:
    """The sleep intervals of one wait.

    The intervals are short at first, so that a quick answer is found quickly, and then grow up to a twentieth of the
    time slept: a message is found at most a millisecond or 5 % of the wait late. Polling every millisecond takes one to
    two percent of a core, which is a third of the CPU time of a rank with a small part of a node.
    """

    def __init__(self) -> None:
        self._next_s = _FIRST_S
        self._slept_s = 0.0

    def next_s(self, longest_s: float = LONGEST_S) -> float:
        """Return the length of the next interval."""
        length_s = min(self._next_s, longest_s)
        self._slept_s += length_s
        self._next_s = min(1.5 * length_s, max(_SHORT_S, _LATE_FRAC * self._slept_s))
        return length_s
