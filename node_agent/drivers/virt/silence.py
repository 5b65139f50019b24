"""How long a guest has sent nothing, measured by an agent that may itself have stood still."""

from __future__ import annotations

CONFIRMED_AFTER_S = 5.0  # ten beats of a guest


class Silence:
    """The time since the last frame of a guest. All times are of one monotonic clock, in seconds.

    An agent that stood still (it was stopped, or its machine was) finds a long silence at its next sample although the
    guest's frames wait to be read, or the guest stood still with it. A silence therefore counts only if a sample that
    is taken `CONFIRMED_AFTER_S` later still finds it.
    """

    def __init__(self, now_s: float) -> None:
        self._heard_s = now_s
        self._found_s: float | None = None  # when a sample found the silence that it is in

    def heard(self, now_s: float) -> None:
        """The guest has sent a frame, or is only now expected to send some."""
        self._heard_s, self._found_s = now_s, None

    def sample(self, now_s: float, most_s: float) -> float:
        """Return for how long the guest has been silent if that counts: longer than `most_s` and confirmed; else 0."""
        silent_s = now_s - self._heard_s
        if silent_s <= most_s:
            return 0.0
        if self._found_s is None:
            self._found_s = now_s
        return silent_s if now_s - self._found_s >= CONFIRMED_AFTER_S else 0.0
