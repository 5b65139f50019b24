"""What is to be done about a guest that tells nothing: attach to it again while its machine works, else give it up."""

from __future__ import annotations

from dataclasses import dataclass

from node_agent.drivers.virt.platform import Timeouts
from testbed.errors import FailureCode

WORKED_S = 0.05  # CPU time from which on a silent machine works: one that is stopped uses none
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


@dataclass(frozen=True, slots=True)
class Fine:
    """It tells, or its silence is too short to count."""


@dataclass(frozen=True, slots=True)
class Reattach:
    """Its machine works, but nothing is heard of it: close and open the host's end of its channel."""

    silent_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It cannot go on."""

    reason: str
    code: FailureCode = FailureCode.GUEST_FAILED


class Recovery:
    """Judges one guest by its frames, its work units and the CPU time of its machine.

    A machine that works is attached to again each time that nothing was heard for `Timeouts.reattach_s`; after
    `Timeouts.reattachments` of them without a new work unit, the next such silence ends the guest. A machine that does
    not work has `Timeouts.silence_s`. All times are of one monotonic clock, in seconds. Each bound has a `Silence` of
    its own, so that neither blames a guest for an agent that stood still.
    """

    def __init__(self, now_s: float, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._stopped, self._mute = Silence(now_s), Silence(now_s)
        self._told_s = now_s
        self._cpu_s: float | None = None  # of the first sample since it was last heard or attached to again
        self._units = 0
        self._attempts = 0  # to attach again, since it last brought new work
        self._outstanding = False  # attached to again, and not heard since
        self._worked_s = now_s  # when it last brought new work, or was expected to begin

    @property
    def attempts(self) -> int:
        """How often it was attached to again since it last brought new work."""
        return self._attempts

    def expected(self, now_s: float) -> None:
        """It is only now expected to tell something: it was released, attached to, or has come back."""
        self._stopped.heard(now_s)
        self._mute.heard(now_s)
        self._cpu_s = None
        if not self._outstanding:
            self._told_s = now_s
            if not self._attempts:
                self._worked_s = now_s

    def told(self, now_s: float, units: int) -> float:
        """Take word of its work; return for how long it was silent if it was attached to again meanwhile, else 0."""
        silent_s = now_s - self._told_s if self._outstanding else 0.0
        self._outstanding = False
        self.expected(now_s)
        if units > self._units:
            self._units, self._attempts, self._worked_s = units, 0, now_s
        return silent_s

    def sample(self, now_s: float, cpu_s: float) -> Fine | Reattach | GiveUp:
        """Judge it by the CPU time that its machine has used; to be asked each second or so, while it should work."""
        timeouts = self._timeouts
        if self._cpu_s is None:
            self._cpu_s = cpu_s
        stopped_s = self._stopped.sample(now_s, timeouts.silence_s)
        mute_s = self._mute.sample(now_s, timeouts.reattach_s)
        if cpu_s - self._cpu_s < WORKED_S:
            return GiveUp(f"it has not answered for {stopped_s:.0f} s") if stopped_s else Fine()
        if not mute_s:
            return Fine()
        if self._attempts >= timeouts.reattachments:
            return GiveUp(
                f"no progress: no new work for {now_s - self._worked_s:.0f} s, though its machine works and was "
                f"attached to again {self._attempts} times",
                FailureCode.NO_PROGRESS,
            )
        self._attempts += 1
        self._outstanding = True
        self._cpu_s = cpu_s
        self._mute.heard(now_s)  # the next attempt is due after as long a silence
        return Reattach(now_s - self._told_s)
