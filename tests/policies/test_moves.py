"""Tasks of a job change places as little as possible."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from testbed.scheduling.places import stable_nodes
from testbed.scheduling.policies.moves import keep_places

PLACES = st.lists(st.integers(0, 4), min_size=1, max_size=8)


@st.composite
def changes(draw):
    jobs = []
    for _ in range(draw(st.integers(1, 4))):
        new = draw(PLACES)
        old = draw(st.one_of(st.permutations(new), st.lists(st.integers(0, 4), min_size=len(new), max_size=len(new))))
        stopped, fresh = draw(st.booleans()), draw(st.booleans())
        jobs.append(([-1] * len(new) if fresh else old, [-1] * len(new) if stopped else new))
    return jobs


@given(changes())
def test_the_fewest_tasks_move(jobs):
    sizes = [len(new) for _, new in jobs]
    offset = np.cumsum([0, *sizes])
    old = np.concatenate([np.array(o) for o, _ in jobs])
    new = np.concatenate([np.array(n) for _, n in jobs])
    got = keep_places(offset, old, new, 5)
    for row, (before, after) in enumerate(jobs):
        mine = got[offset[row] : offset[row + 1]].tolist()
        assert Counter(mine) == Counter(after)
        if -1 not in before and -1 not in after:
            stay = sum((Counter(before) & Counter(after)).values())
            assert sum(a == b for a, b in zip(before, mine, strict=True)) == stay
            assert Counter(before) != Counter(after) or mine == before
            assert stable_nodes(before, after) == tuple(mine)


def test_who_stays_and_who_goes():
    got = keep_places(np.array([0, 4]), np.array([2, 2, 0, 1]), np.array([3, 1, 2, 0]), 4)
    assert got.tolist() == [2, 3, 0, 1]
