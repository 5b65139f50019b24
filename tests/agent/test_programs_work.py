"""Results of the programs: exactly those of an implementation in another language."""

from __future__ import annotations

import math
import zlib
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node_agent.programs.ballast import Ballast, ballast_mib
from node_agent.programs.kernel import ELEMENTS, LCG_A, LCG_C, Kernel
from node_agent.programs.task import TOPOLOGIES, Task, TaskError
from node_agent.programs.words import GOLDEN, MASK, fold, mix64, seed_of, stream
from testbed.bus.topology import children, grid, neighbours, parent, subtree

WORD = st.integers(0, MASK)


def task(**changes) -> Task:
    spec = {
        "guest": "a", "run": "r", "job": 1, "task": 0, "memory_mib": 64, "cpu_cores": 1.0,
        "program": {
            "name": "patterns", "work_units": 1000, "units_per_iteration": 70, "seed": 3, "workers": 1, "rank": 0,
            "ranks": 1, "topology": "ring", "imbalance": "uniform", "message_bytes": 64,
        },
    }  # fmt: skip
    for name, value in changes.items():
        (spec["program"] if name in spec["program"] else spec)[name] = value
    return Task.from_spec(spec)


def test_mix64_is_splitmix64():
    # the first outputs of SplitMix64 from seed 1234567, as its reference implementation prints them
    state, found = 1234567, []
    for _ in range(3):
        found.append(mix64(state))
        state = (state + GOLDEN) & MASK
    assert found == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(WORD, st.integers(1, 50))
def test_a_stream_is_what_the_definition_says_word_by_word(seed, count):
    assert [int(word) for word in stream(seed, count)] == [mix64((seed + i * GOLDEN) & MASK) for i in range(count)]


@given(st.lists(WORD, min_size=1, max_size=40), st.data())
def test_fold_is_the_defined_sum_and_notices_where_a_word_stands(words, data):
    array = np.array(words, dtype=np.uint64)
    assert fold(array) == sum((w ^ (w >> 32)) * (2 * i + 1) for i, w in enumerate(words)) & MASK
    i = data.draw(st.integers(0, len(words) - 1))
    other = array.copy()
    other[i] ^= np.uint64(1 << data.draw(st.integers(0, 31)))
    assert fold(other) != fold(array)


@settings(max_examples=10)
@given(st.integers(0, 2**31), st.integers(0, 7), st.integers(1, 3), st.lists(st.integers(0, 9), max_size=4))
def test_work_is_the_defined_recurrence_for_every_worker_however_it_is_cut(seed, rank, workers, chunks):
    kernel = Kernel(seed, rank, workers)
    done = [0] * workers
    for units in chunks:
        kernel.run(units)
        each, more = divmod(units, workers)
        done = [count + each + (worker < more) for worker, count in enumerate(done)]
    for worker, array in enumerate(kernel.arrays):
        for i in (0, 1, ELEMENTS - 1):
            x = mix64((seed_of(seed, rank, worker) + i * GOLDEN) & MASK)
            for _ in range(done[worker]):
                x = (x * LCG_A + LCG_C) & MASK
            assert int(array[i]) == x
    assert kernel.checksum() == seed_of(*(fold(array) for array in kernel.arrays))


@given(st.integers(1, 5000), st.integers(1, 900), st.integers(0, 6), st.sampled_from(["uniform", "1/i", "drift:4"]))
def test_shares_of_the_iterations_add_up_to_the_work(work, step, rank, imbalance):
    one = task(work_units=work, units_per_iteration=step, rank=rank, ranks=7, imbalance=imbalance)
    done = [one.units_after(k) for k in range(one.iterations + 1)]
    assert done[0] == 0
    assert done[-1] == work
    for k, (before, after) in enumerate(pairwise(done)):
        assert 0 < after - before <= step
        if imbalance == "uniform":
            assert one.share(k) == after - before
        else:
            moved = k // 4 if imbalance == "drift:4" else 0
            assert one.share(k) == max(1, round((after - before) / ((rank - moved) % 7 + 1)))


@given(st.sampled_from(TOPOLOGIES), st.integers(1, 40))
def test_neighbours_are_mutual_and_reach_everyone(topology, ranks):
    near = [neighbours(topology, rank, ranks) for rank in range(ranks)]
    for rank, others in enumerate(near):
        assert list(others) == sorted(set(others) - {rank})
        assert all(rank in near[other] for other in others)
    reached = {0}
    for _ in range(ranks):
        reached |= {other for rank in reached for other in near[rank]}
    assert reached == set(range(ranks))


def test_neighbours_of_known_shapes():
    assert grid(12) == (3, 4)
    assert neighbours("linear", 0, 4) == (1,)
    assert neighbours("ring", 0, 4) == (1, 3)
    assert neighbours("mesh", 0, 12) == (1, 4)
    assert neighbours("torus", 0, 12) == (1, 3, 4, 8)
    assert neighbours("tree", 1, 7) == (0, 3, 4)
    assert len(neighbours("all-to-all", 3, 9)) == 8


@given(st.integers(1, 60))
def test_subtrees_of_the_reduction_tree_part_the_ranks(ranks):
    assert sorted(subtree(0, ranks)) == list(range(ranks))
    for rank in range(1, ranks):
        above = parent(rank)
        assert above is not None
        assert rank in children(above, ranks)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"topology": "star"}, "topology = 'star': expected one of linear"),
        ({"work_units": 0}, "work_units = 0: expected at least 1"),
        ({"work_units": -1}, "work_units = -1: expected a count"),
        ({"rank": 2, "ranks": 2}, "rank = 2: expected less than ranks = 2"),
        ({"name": "eatcpu", "ranks": 2}, "eatcpu sends no messages"),
        ({"topology": "tree", "ranks": 2, "message_bytes": 7}, "message_bytes = 7: expected at least 8"),
        ({"guest": None}, "guest = None: expected text"),
    ],
)
def test_a_task_that_makes_no_sense_is_told_why(changes, complaint):
    with pytest.raises(TaskError, match=complaint):
        task(**changes)


def test_ballast_is_incompressible_and_belongs_to_its_task():
    contents = []
    for one in (task(), task(), task(task=1), task(job=2), task(seed=4)):
        ballast = Ballast(2)
        ballast.fill(one)
        contents.append(bytes(ballast.bytes))
        ballast.free()
    assert contents[0] == contents[1]
    assert len(set(contents)) == 4
    assert len(zlib.compress(contents[0], 1)) > 0.99 * len(contents[0])
    blocks = {contents[0][k : k + 4096] for k in range(0, len(contents[0]), 4096)}
    assert len(blocks) == 512  # all pages differ, so no host can merge them


@given(st.integers(1, 200), st.floats(1.0, 100.0), st.integers(1, 3))
def test_ballast_fills_the_task_up_or_the_floor_is_told(memory_mib, own_mib, ranks):
    one = task(memory_mib=memory_mib, ranks=ranks)
    floor_mib = math.ceil(own_mib)
    if memory_mib >= floor_mib:
        assert ballast_mib(one, own_mib) == memory_mib - floor_mib
    else:
        with pytest.raises(TaskError, match=f"memory_mib = {memory_mib}: expected at least {floor_mib}"):
            ballast_mib(one, own_mib)
