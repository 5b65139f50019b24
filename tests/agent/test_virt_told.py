"""Checks of a virtual machine's reports about its work, above all of the ranks for which its rank has waited."""

from __future__ import annotations

import contextlib
import itertools
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.drivers.virt.told import Told, waits_in
from node_agent.guests.wire import Frame, Reader, WireError, encode
from testbed.bus.telemetry import GuestSample


def beat(**fields: object) -> Frame:
    (frame,) = Reader().feed(encode("beat", {"units": 3, "mono_ns": 5, **fields}.items()))
    return frame


def test_waits_are_those_of_the_last_beat_that_told_them() -> None:
    told = Told(3)
    told.take(beat(), 1)
    assert told.waits_s == ()
    told.take(beat(waits_s="0,0.250000,1"), 2)
    assert told.waits_s == (0.0, 0.25, 1.0)
    told.take(beat(units=4), 3)
    assert (told.units, told.mono_ns, told.waits_s) == (4, 3, (0.0, 0.25, 1.0))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("0,1", "waits_s has 2 values: expected one for each of 3 ranks"),
        ("", "waits_s has 1 values: expected one for each of 3 ranks"),
        ("0,0,0,0", "waits_s has 4 values"),
        ("0," * 1000 + "0", "waits_s has 1001 values"),
        ("0,nan,0", "waits_s of rank 1 = 'nan': expected seconds from 0 up"),
        ("0,0,inf", "waits_s of rank 2 = 'inf'"),
        ("-1,0,0", "waits_s of rank 0 = '-1'"),
        ("0,0,1e16", "waits_s of rank 2 = '1e16'"),
        ("0,,0", "waits_s of rank 1 = ''"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(said: str, why: str) -> None:
    told = Told(3)
    with pytest.raises(WireError, match=f"beat: {why}"):
        told.take(beat(waits_s=said, steps=1, longest_s=1, compute_s=1, comm_s=1), 1)
    assert (told.units, told.mono_ns, told.steps, told.waits_s) == (0, 0, None, ())


def test_a_wait_never_falls() -> None:
    told = Told(2)
    told.take(beat(waits_s="0,2"), 1)
    with pytest.raises(WireError, match=r"waits_s of rank 1 = '1\.9': expected seconds from 2 up"):
        told.take(beat(waits_s="0,1.9"), 2)


def test_a_guest_that_is_no_rank_waits_for_nobody() -> None:
    with pytest.raises(WireError, match="expected one for each of 1 ranks"):
        waits_in(beat(waits_s="0"), 1, ())


@given(
    ranks=st.integers(2, 5),
    said=st.lists(
        st.one_of(
            st.text(max_size=30),
            st.lists(st.floats(), max_size=6).map(lambda values: ",".join(map(str, values))),
            st.lists(st.floats(0, 1e4), min_size=2, max_size=5).map(lambda values: ",".join(map(str, values))),
        ),
        max_size=6,
    ),
)
def test_whatever_a_guest_says_samples_hold_no_more_than_they_may(ranks: int, said: list[str]) -> None:
    told = Told(ranks)
    kept = [told.waits_s]
    for each in said:
        with contextlib.suppress(WireError):
            told.take(beat(waits_s=each), 1)
        kept.append(told.waits_s)
    for before, after in itertools.pairwise(kept):
        assert len(after) in (0, ranks)
        assert all(math.isfinite(each) for each in after)
        assert all(x <= y for x, y in zip(before or [0.0] * ranks, after, strict=False))
    sample = {
        "guest": "g", "state": "running", "cap_cores": 1.0, "cpu_s": 0.0, "rss_mib": 0.0, "read_mib": 0.0,
        "written_mib": 0.0, "units_done": 1, "units_mono_ns": 1, "waits_s": told.waits_s,
    }  # fmt: skip
    assert msgspec.convert(sample, GuestSample).waits_s == told.waits_s
