"""Parts of the work by rank: a drift is the parts 1/i, moved on by ranks; each rank's iterations are counted right."""

from __future__ import annotations

import re
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from testbed.bus.imbalance import PATTERN, drift_of, part, parts_of

IMBALANCES = st.one_of(st.sampled_from(["uniform", "1/i"]), st.integers(1, 999_999_999).map("drift:{}".format))


@given(IMBALANCES)
def test_every_imbalance_is_one(text):
    assert re.fullmatch(PATTERN, text)
    assert drift_of(text) == (int(text[6:]) if text.startswith("drift") else None)


def test_nothing_else_is_one():
    for text in ("", "drift", "drift:", "drift:0", "drift:01", "drift:-1", "drift:1.5", "drift:1000000000", "1/j"):
        assert not re.fullmatch(PATTERN, text)


def test_the_heaviest_rank_moves_on():
    assert [part("drift:5", 0, 3, moves) for moves in range(4)] == [1, 3, 2, 1]
    assert [part("drift:5", rank, 3, 1) for rank in range(3)] == [3, 1, 2]
    assert [part("1/i", rank, 3, 1) for rank in range(3)] == [1, 2, 3]


@given(st.integers(1, 9), st.integers(0, 30))
def test_all_ranks_together_always_do_the_same(ranks, moves):
    assert sorted(part("drift:2", rank, ranks, moves) for rank in range(ranks)) == list(range(1, ranks + 1))


@given(st.integers(1, 6), st.integers(0, 60), st.sampled_from(["uniform", "1/i", "drift:1", "drift:4"]), st.data())
def test_the_iterations_of_each_part_are_counted(ranks, iterations, imbalance, data):
    rank = data.draw(st.integers(0, ranks - 1))
    every = drift_of(imbalance) or iterations + 1
    expected = Counter(part(imbalance, rank, ranks, k // every) for k in range(iterations))
    found: Counter[int] = Counter()
    for divisor, times in parts_of(imbalance, rank, ranks, iterations):
        found[divisor] += times
    assert +found == expected
