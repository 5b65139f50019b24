"""Profiles of needs over the work of a task: their syntax, and the part of each iteration."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.bus.need_profile import MOST_PARTS, PATTERN, WHOLE_PARTS, Profile, mean_factor, parts_of, phases


def text_of(parts: int) -> str:
    return "1" if parts == 10_000 else f"0.{parts:04}".rstrip("0")


PROFILES = st.tuples(
    st.lists(st.integers(1, 10_000), min_size=MOST_PARTS, max_size=MOST_PARTS),
    st.sets(st.integers(1, 9_999), max_size=MOST_PARTS - 1).map(sorted),
).map(
    lambda made: ",".join(
        [text_of(made[0][0])]
        + [f"{text_of(part)}@{text_of(begins)}" for part, begins in zip(made[0][1:], made[1], strict=False)]
    )
)


@given(PROFILES)
def test_every_profile_is_one_and_reads_exactly(text: str) -> None:
    assert re.fullmatch(PATTERN, text)
    words = [word.partition("@") for word in text.split(",")]
    exact = [(Fraction(begins or "0"), Fraction(part)) for part, _, begins in words]
    assert [(Fraction(b, 10_000), Fraction(p, 10_000)) for b, p in parts_of(text)] == exact


@pytest.mark.parametrize(
    "text", ["", "0", "0.0", "2", "1.0", "1,", "1,0.5", "1,0.5@0", "1,0.5@1", "1,0.5@0.5,1@0.5", "1,0.5@0.5,1@0.2",
             "0.12345", "1,0.5@0.00001", " 1", "1;0.5@0.5", "-1", "1,0.0000@0.5", ",".join(["1"] + ["1@0.5"] * 8)],
)  # fmt: skip
def test_nothing_else_is_one(text: str) -> None:
    with pytest.raises(ValueError, match="expected a profile such as"):
        parts_of(text)


@given(PROFILES, st.integers(1, 10**12), st.integers(1, 10**6), st.data())
def test_iterations_have_the_part_that_holds_where_they_begin(text: str, iterations: int, units: int, data) -> None:
    iteration = data.draw(st.integers(0, iterations - 1))
    done = Fraction(iteration, iterations)
    part = [part for begins, part in parts_of(text) if Fraction(begins, 10_000) <= done][-1]
    found = Profile(text, iterations).units(units, iteration)
    assert found == max(1, int(Fraction(units * part, 10_000) + Fraction(1, 2)))


def test_a_profile_by_hand() -> None:
    assert phases("1,0.25@0.5,0.8@0.75", 9) == [(0, 10_000), (5, 2_500), (7, 8_000)]
    half = Profile("1,0.25@0.5", 4)
    assert [half.units(100, k) for k in range(4)] == [100, 100, 25, 25]
    assert half.units(1, 3) == 1


@given(PROFILES, st.integers(1, 200))
def test_the_mean_is_that_of_all_iterations(profile: str, iterations: int) -> None:
    found = phases(profile, iterations)
    factors = [[factor for begin, factor in found if begin <= each][-1] for each in range(iterations)]
    assert mean_factor(profile, iterations) == pytest.approx(float(Fraction(sum(factors), iterations * WHOLE_PARTS)))
