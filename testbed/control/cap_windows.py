"""Windows in which the cap of a guest is constant: the CPU that it used in them against the CPU that it was given."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.bus.caps import same_cap
from testbed.bus.telemetry import GuestSample
from testbed.control.cluster import LiveJob
from testbed.control.recorder import CapWindow, Recorder
from testbed.run.phases import Phase

SHORTEST_S = 2.0
_LONGEST_NS = 10 * 10**9


@dataclass(slots=True)
class _Open:
    """A window that has not ended. The CPU time of a guest starts from 0 in each life, and on each node."""

    program: str
    tags: dict[str, str]
    life: tuple[int, int]  # node and generation
    wanted_cores: float
    cap_cores: float  # in force, as read back
    begin_ns: int
    begin_cpu_s: float
    last_ns: int
    last_cpu_s: float

    def goes_on(self, later: _Open) -> bool:
        """Whether a window that begins at a later sample would be of the same cap in the same life."""
        caps = (self.cap_cores, self.wanted_cores) == (later.cap_cores, later.wanted_cores)
        return caps and self.life == later.life and self.last_cpu_s <= later.last_cpu_s


class CapWindows:
    """Forms the windows of all guests from their samples, and records those that are long enough."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._open: dict[str, _Open] = {}  # by guest

    def take(
        self, live: LiveJob, task: int, node: int, mono_ns: int, sample: GuestSample, tags: dict[str, str]
    ) -> None:
        """Add a sample to the open window, which ends when the cap in force changes or is unknown.

        A window also ends where the CPU time falls, in whatever life. Guests that compete by shares have no windows:
        their usage depends on other guests more than on their caps.
        """
        found, wanted = sample.cap_cores, sample.wanted_cores
        if found is None or wanted is None or sample.share_cores is not None:
            self.end(sample.guest)
            return
        program = live.specs[task].program
        steady = live.state.phase is Phase.RUNNING and live.advances and not live.state.finished_tasks
        drifted = steady and not same_cap(found, wanted, float(program.workers))
        life = node, live.state.generation
        new = _Open(program.name, tags, life, wanted, found, mono_ns, sample.cpu_s, mono_ns, sample.cpu_s)
        window = self._open.get(sample.guest)
        if window is not None and (not steady or drifted or not window.goes_on(new)):
            self.end(sample.guest, drifted=drifted and window.life == new.life)
            window = None
        if drifted or not steady:
            return
        if window is None:
            self._open[sample.guest] = new
            return
        window.last_ns, window.last_cpu_s = mono_ns, sample.cpu_s
        if mono_ns - window.begin_ns >= _LONGEST_NS:
            self.end(sample.guest)
            self._open[sample.guest] = new

    def end(self, guest: str, *, drifted: bool = False) -> None:
        """End the open window of a guest, if there is one; `drifted` if another cap than the wanted came in force."""
        window = self._open.pop(guest, None)
        if window is None:
            return
        length_s = (window.last_ns - window.begin_ns) / 1e9
        if length_s >= SHORTEST_S:
            used_cores = (window.last_cpu_s - window.begin_cpu_s) / length_s
            found = CapWindow(window.program, window.wanted_cores, used_cores, length_s, drifted)
            self._recorder.cap_window(window.tags, found)
