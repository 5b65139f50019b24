"""The disturbances that the judge of accuracy recognises."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from support.live import HANG_S
from testbed.testing import accuracy
from testbed.testing.accuracy import Look, Window, disturbance


def looks(*stretches: tuple[float, float, float, float]) -> list[Look]:
    """Return the counters after each interval: seconds, and counted, idle and stolen time per second."""
    found = [Look(100.0, 5000.0, 4000.0, 10.0)]
    for elapsed_s, counted, idle, steal in stretches:
        last = found[-1]
        found.append(
            Look(
                last.at_s + elapsed_s,
                last.counted_s + counted * elapsed_s,
                last.idle_s + idle * elapsed_s,
                last.steal_s + steal * elapsed_s,
            )
        )
    return found


def test_an_idle_machine_is_judged():
    assert disturbance(looks(*[(0.5, 1.0, 0.5, 0.0)] * 8)) == ""


@pytest.mark.parametrize("busy_at", range(8))
def test_half_a_busy_second_is_enough(busy_at: int):
    stretches = [(0.5, 1.0, 0.9, 0.0)] * 8
    stretches[busy_at] = (0.5, 1.0, 0.1, 0.0)
    assert disturbance(looks(*stretches)) == "10% of the CPU time was idle for 0.5 s, less than 40%"


@pytest.mark.parametrize(
    ("stretch", "said"),
    [
        ((0.5, 0.5, 0.5, 0.0), "the machine's CPUs counted 83% of the time that passed"),
        ((0.5, 1.0, 0.5, 0.1), "3.3% of the CPU time was stolen, more than 2%"),
        ((1.5, 1.0, 0.9, 0.0), "the test itself stood still for 1.0 s"),
    ],
)
def test_what_else_disturbs(stretch: tuple[float, float, float, float], said: str):
    assert disturbance(looks((0.5, 1.0, 0.5, 0.0), stretch, (0.5, 1.0, 0.5, 0.0))) == said


def test_a_window_looks_all_the_time_until_it_is_gone(monkeypatch):
    monkeypatch.setattr(accuracy, "LOOK_EVERY_S", 0.0)
    enough = threading.Event()

    def script() -> Iterator[Look]:
        """A busy second among idle ones."""
        yield from looks(*[(0.5, 1.0, 0.9, 0.0)] * 50, (0.5, 1.0, 0.0, 0.0))
        last = looks(*[(0.5, 1.0, 0.9, 0.0)] * 51)[-1]
        while True:
            yield last
            enough.set()

    rest = script()
    before = set(threading.enumerate())
    monkeypatch.setattr(accuracy, "look", lambda: next(rest))
    window = Window()
    (watching,) = set(threading.enumerate()) - before
    assert enough.wait(HANG_S)
    monkeypatch.setattr(accuracy, "look", lambda: looks(*[(0.5, 1.0, 0.9, 0.0)] * 60)[-1])
    assert "0% of the CPU time was idle for 0.5 s" in window.busy()
    del window
    gc.collect()
    watching.join(HANG_S)
    assert not watching.is_alive()
