"""Windows of guests whose needs are watched: their begin, their end, and the reported need."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.need_watch import NeedWatch
from testbed.bus.messages import GuestSpec, ProgramSpec
from testbed.bus.telemetry import GuestSample

SPEC = GuestSpec(
    guest="a", run="r", job=1, task=0, cpu_cores=0.5, memory_mib=64, watch_s=5.0,
    program=ProgramSpec("eatcpu", 10**9, 100, 1),
)  # fmt: skip


def sample(cpu_s: float, cap_cores: float | None = 0.5, **changes: object) -> GuestSample:
    usual = {
        "guest": "a", "state": "running", "cap_cores": cap_cores, "cpu_s": cpu_s, "rss_mib": 1.0, "read_mib": 0.0,
        "written_mib": 0.0, "units_done": 1, "units_mono_ns": 1, "wanted_cores": cap_cores, "throttled_s": 0.0,
    }  # fmt: skip
    return GuestSample(**{**usual, **changes})


def watch(spec: GuestSpec = SPEC) -> NeedWatch:
    found = NeedWatch()
    found.begin(spec)
    return found


def test_a_guest_that_uses_less_than_its_cap_is_told_to_need_that_after_a_window() -> None:
    needs = watch()
    told = [needs.estimated([sample(0.2 * second)], float(second))[0].need for second in range(7)]
    assert told[:5] == [None] * 5
    assert told[5].cores == pytest.approx(0.2)
    assert told[5] == told[6]
    assert told[5].memory_mib == 1.0


def test_windows_begin_anew_where_the_cap_changes_and_while_the_guest_does_not_work() -> None:
    needs = watch()
    for second, changes in enumerate(
        [{}, {}, {}, {}, {"cap_cores": 0.3}, {}, {"state": "held"}, {}, {"units_done": 0}, {"cap_cores": None}]
    ):
        assert needs.estimated([sample(0.2 * second, **changes)], float(second))[0].need is None
    for second in range(10, 16):
        told = needs.estimated([sample(0.2 * second)], float(second))[0].need
    assert told.cores == pytest.approx(0.2)


def test_a_guest_that_was_held_back_needs_at_most_its_own_pace() -> None:
    needs = watch()
    needs.estimated([sample(0.0, 0.1)], 0.0)
    (found,) = needs.estimated([sample(0.5, 0.1, throttled_s=2.5)], 5.0)
    assert (found.need.least_cores, found.need.most_cores) == (pytest.approx(0.1), pytest.approx(0.22))
    (found,) = needs.estimated([sample(1.0, 0.1, throttled_s=None)], 10.0)
    assert found.need.most_cores == pytest.approx(0.22), "the node gave no report in this window"


def test_only_guests_that_are_to_be_watched_are_and_until_they_are_gone() -> None:
    needs = watch(msgspec.structs.replace(SPEC, watch_s=0.0))
    for second in range(8):
        assert needs.estimated([sample(0.2 * second)], float(second))[0].need is None
    needs.begin(SPEC)
    for second in range(8):
        found = needs.estimated([sample(0.2 * second)], float(second))[0]
    assert found.need is not None
    needs.gone("a")
    assert needs.estimated([sample(9.0)], 9.0)[0].need is None


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9), st.none() | st.floats(0, 2), st.none() | st.floats(0, 9))))
def test_counters_that_go_back_and_clocks_that_stand_do_no_harm(seen: list) -> None:
    needs, now_s = watch(), 0.0
    for step_s, cpu_s, cap_cores, throttled_s in seen:
        now_s += step_s
        need = needs.estimated([sample(cpu_s, cap_cores, throttled_s=throttled_s)], now_s)[0].need
        if need is not None:
            assert 0.0 <= need.least_cores <= need.cores <= need.booked_cores <= 1.0
            assert need.cores <= need.most_cores <= 1.0
