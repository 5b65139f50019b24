"""Recovery of a silent guest: attach to it again while its machine works, else give it up."""

from __future__ import annotations

from dataclasses import dataclass

from node_agent.drivers.virt.platform import Timeouts
from testbed.errors import FailureCode

WORKED_S = 0.05  # least CPU time of a silent machine that counts as working: a stopped one uses none
CONFIRMED_AFTER_S = 5.0  # ten beats of a guest


class Silence:
    """The time since the last frame of a guest. All times are of one monotonic clock, in seconds.

    After an agent or its machine was stopped, its next sample finds a long silence although the guest's frames wait to
    be read, or the guest was stopped as well. A silence therefore counts only if a sample `CONFIRMED_AFTER_S` later
    still finds it.
    """

    def __init__(self, now_s: float) -> None:
        self._heard_s = now_s
        self._found_s: float | None = None  # when a sample found the current silence

    def heard(self, now_s: float) -> None:
        """The guest has sent a frame, or is only now expected to send some."""
        self._heard_s, self._found_s = now_s, None

    def sample(self, now_s: float, most_s: float) -> float:
        """Return the duration of the guest's silence if it is longer than `most_s` and confirmed; else 0."""
        silent_s = now_s - self._heard_s
        if silent_s <= most_s:
            return 0.0
        if self._found_s is None:
            self._found_s = now_s
        return silent_s if now_s - self._found_s >= CONFIRMED_AFTER_S else 0.0


@dataclass(frozen=True, slots=True)
class Fine:
    """The guest sends frames, or its silence is too short to count."""


@dataclass(frozen=True, slots=True)
class Reattach:
    """The guest's machine works, but no frames arrive: close and open the host's end of its channel."""

    silent_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The guest cannot continue."""

    reason: str
    code: FailureCode = FailureCode.GUEST_FAILED


class Recovery:
    """Judges one guest by its frames, its work units and the CPU time of its machine.

    The agent attaches again to a working machine after each silence of `Timeouts.reattach_s`. After
    `Timeouts.reattachments` attempts without a new work unit, the next such silence ends the guest. The limit for a
    machine that does not work is `Timeouts.silence_s`. All times are of one monotonic clock, in seconds. Each bound has
    a `Silence` of its own, so that neither blames a guest for a stopped agent.
    """

    def __init__(self, now_s: float, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._stopped, self._mute = Silence(now_s), Silence(now_s)
        self._told_s = now_s
        self._cpu_s: float | None = None  # of the first sample since its last frame or attach
        self._units = 0
        self._attempts = 0  # to attach again, since its last new work unit
        self._outstanding = False  # attached to again, without a frame since
        self._worked_s = now_s  # when its last new work unit was reported, or expected to begin

    @property
    def attempts(self) -> int:
        """The number of attempts to attach again since its last new work unit."""
        return self._attempts

    def expected(self, now_s: float) -> None:
        """The guest is expected to send frames from now on: it was released, attached to, or has returned."""
        self._stopped.heard(now_s)
        self._mute.heard(now_s)
        self._cpu_s = None
        if not self._outstanding:
            self._told_s = now_s
            if not self._attempts:
                self._worked_s = now_s

    def told(self, now_s: float, units: int) -> float:
        """Take a report of its work; return the duration of its silence if it was attached to again, else 0."""
        silent_s = now_s - self._told_s if self._outstanding else 0.0
        self._outstanding = False
        self.expected(now_s)
        if units > self._units:
            self._units, self._attempts, self._worked_s = units, 0, now_s
        return silent_s

    def sample(self, now_s: float, cpu_s: float) -> Fine | Reattach | GiveUp:
        """Judge it by the CPU time of its machine; call it about once per second, while the guest should work."""
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
        self._mute.heard(now_s)  # the next attempt is due after an equally long silence
        return Reattach(now_s - self._told_s)
