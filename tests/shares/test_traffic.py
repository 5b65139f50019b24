"""The guess of which rank waits for which: with jobs whose waits are known, and with arbitrary counts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from testbed.bus.topology import neighbours
from testbed.shares.traffic import Slice, TrafficWaits

SLICE_S = 0.02
SLICES = st.lists(
    st.builds(
        Slice, st.floats(-1, 1), st.floats(-1, 2), st.floats(-1, 2),
        st.lists(st.integers(-1, 10**6), min_size=3, max_size=3),
    ),
    max_size=30,
)  # fmt: skip


def part(blocked_s: float, received: Sequence[int], elapsed_s: float = SLICE_S) -> Slice:
    """Return a slice in which the guest ran while it was not blocked."""
    return Slice(elapsed_s, elapsed_s - blocked_s, blocked_s, received)


def guess(slices: Sequence[Slice], ranks: int = 3) -> tuple[float, ...]:
    waits = TrafficWaits(ranks)
    for each in slices:
        waits.take(each)
    return waits.waits_s


def test_the_last_to_come_is_waited_for() -> None:
    slices = [
        part(0.0, (0, 0, 900)),  # the rank computes, and no rank waits for it
        part(0.015, (0, 0, 0)),
        part(0.019, (900, 0, 0)),
        part(0.02, (0, 0, 0)),
        part(0.002, (0, 0, 900)),
        part(0.0, (900, 0, 0)),
    ]
    assert guess(slices) == pytest.approx((0, 0, 0.056))


def test_what_comes_when_it_works_again_is_too_late_to_have_ended_the_wait() -> None:
    wait = [part(0.02, (0, 0, 0)), part(0.018, (900, 0, 0))]
    assert guess([*wait, part(0.0, (0, 0, 900))]) == pytest.approx((0.038, 0, 0))
    assert guess([*wait, part(0.005, (0, 0, 900))]) == pytest.approx((0, 0, 0.043))
    assert guess([*wait, part(0.02, (0, 0, 0)), part(0.0, (0, 0, 900))]) == pytest.approx((0, 0, 0.058))


def test_a_guest_that_polls_or_wants_a_cpu_in_a_wait_still_waits() -> None:
    slices = [
        Slice(0.02, 0.006, 0.005, (0, 0, 0)),
        Slice(0.02, 0.0, 0.0, (0, 0, 0)),
        Slice(0.02, 0.015, 0.0, (7, 0, 0)),
    ]
    assert guess(slices) == pytest.approx((0.034, 0, 0))


def test_a_guest_that_wants_a_cpu_while_it_computes_does_not_wait() -> None:
    assert guess([Slice(0.5, 0.1, 0.001, (0, 9, 0))] * 9) == (0, 0, 0)


def test_two_that_come_together_share_the_wait_by_their_bytes() -> None:
    slices = [part(0.02, (0, 0, 0)), part(0.02, (0, 0, 0)), part(0.004, (300, 100, 0))]
    assert guess(slices) == pytest.approx((0.033, 0.011, 0))


def test_a_sleep_without_messages_is_no_wait_and_a_short_one_is_none() -> None:
    slept = [part(0.02, (0, 0, 0)), part(0.02, (0, 0, 0)), part(0.0, (0, 0, 0))]
    assert guess([*slept, part(0.02, (5, 0, 0)), part(0.0, (0, 0, 0))]) == (0, 0, 0)


def test_a_wait_that_a_hold_has_broken_is_forgotten() -> None:
    waits = TrafficWaits(2)
    for _ in range(9):
        waits.take(part(0.02, (70, 0)))
    waits.forget()
    waits.take(part(0.0, (0, 0)))
    assert waits.waits_s == (0, 0)


@given(SLICES)
def test_waits_never_fall_and_never_exceed_the_time_without_running(slices: list[Slice]) -> None:
    waits, idle_s = TrafficWaits(3), 0.0
    for each in slices:
        before = waits.waits_s
        waits.take(each)
        if each.elapsed_s > 0:
            idle_s += max(each.elapsed_s - max(each.ran_s, 0.0), 0.0)
        assert all(x <= y for x, y in zip(before, waits.waits_s, strict=True))
        assert sum(waits.waits_s) <= idle_s + 1e-9
    for rank in range(3):
        if not any(each.received_bytes[rank] > 0 for each in slices):
            assert waits.waits_s[rank] == 0, "no message has arrived from this rank"


@given(SLICES, st.integers(2, 1000), st.permutations(range(3)))
def test_sizes_of_messages_and_numbers_of_ranks_mean_nothing(
    slices: list[Slice], factor: int, order: list[int]
) -> None:
    other = [
        Slice(each.elapsed_s, each.ran_s, each.blocked_s, [each.received_bytes[rank] * factor for rank in order])
        for each in slices
    ]
    found = guess(slices)
    assert guess(other) == pytest.approx([found[rank] for rank in order])


@given(
    st.lists(st.tuples(st.floats(0.5, 1), st.lists(st.integers(0, 10**6), min_size=3, max_size=3)), max_size=30).map(
        lambda found: [part(0.02 * frac, received) for frac, received in found]
    ),
    st.integers(1, 5),
)
def test_a_wait_is_the_same_in_shorter_slices(slices: list[Slice], parts: int) -> None:
    end = part(0.0, (0, 0, 0))
    split = [
        part(each.blocked_s / parts, each.received_bytes if number == 0 else (0, 0, 0), each.elapsed_s / parts)
        for each in slices
        for number in range(parts)
    ]
    assert guess([*split, end]) == pytest.approx(guess([*slices, end]))


# Jobs whose waits are known: each rank computes, sends to its neighbours, and waits for the messages of all of them.

Job = list[list[float]]  # by rank: the seconds of computation in each iteration


def played(job: Job, topology: str) -> tuple[list[list[tuple[float, float, int]]], list[list[tuple[float, int]]]]:
    """Return for each rank its waits (begin, end, the rank that it waited for), and its arrivals (time, source)."""
    ranks = len(job)
    near = [neighbours(topology, rank, ranks) for rank in range(ranks)]
    ready_s = [0.0] * ranks
    waits: list[list[tuple[float, float, int]]] = [[] for _ in job]
    arrivals: list[list[tuple[float, int]]] = [[] for _ in job]
    for iteration in range(len(job[0])):
        sent_s = [ready_s[rank] + job[rank][iteration] for rank in range(ranks)]
        for rank in range(ranks):
            arrivals[rank] += [(sent_s[source], source) for source in near[rank]]
            last_s, source = max((sent_s[source], source) for source in near[rank])
            if last_s > sent_s[rank]:
                waits[rank].append((sent_s[rank], last_s, source))
            ready_s[rank] = max(last_s, sent_s[rank])
    return waits, arrivals


def sliced(waits: list[tuple[float, float, int]], arrivals: list[tuple[float, int]], ranks: int) -> list[Slice]:
    end_s = max(at_s for at_s, _ in arrivals) + 2 * SLICE_S
    found = []
    for number in range(math.ceil(end_s / SLICE_S)):
        low_s, high_s = number * SLICE_S, (number + 1) * SLICE_S
        blocked_s = sum(max(0.0, min(end_s, high_s) - max(begin_s, low_s)) for begin_s, end_s, _ in waits)
        received = [0] * ranks
        for at_s, source in arrivals:
            received[source] += 5000 if low_s <= at_s < high_s else 0
        found.append(part(min(blocked_s, SLICE_S), received))
    return found


@given(
    topology=st.sampled_from(["linear", "ring", "mesh", "torus", "all-to-all"]),
    slow_s=st.floats(0.3, 1.0),
    ranks=st.integers(2, 4),
    iterations=st.integers(2, 4),
    data=st.data(),
)
def test_the_guess_names_the_slow_rank_of_a_job_that_computes_for_long(
    topology: str, slow_s: float, ranks: int, iterations: int, data: st.DataObject
) -> None:
    """One rank is slower than all others by at least five slices; its neighbours wait for it, and the guess says so."""
    slow = data.draw(st.integers(0, ranks - 1))
    quick = st.floats(5 * SLICE_S, slow_s - 5 * SLICE_S)
    job = [[slow_s if rank == slow else data.draw(quick) for _ in range(iterations)] for rank in range(ranks)]
    waits, arrivals = played(job, topology)
    for rank in neighbours(topology, slow, ranks):
        known_s = [0.0] * ranks
        for begin_s, end_s, source in waits[rank]:
            known_s[source] += end_s - begin_s
            near_s = [at_s for at_s, other in arrivals[rank] if other != source and abs(at_s - end_s) < 2 * SLICE_S]
            assume(not near_s)  # the order of messages within one slice is unknown
        found_s = guess(sliced(waits[rank], arrivals[rank], ranks), ranks)
        assert found_s[slow] == pytest.approx(known_s[slow], abs=2 * SLICE_S * iterations)
        assert max(found_s) == found_s[slow]


def test_of_two_waits_in_one_slice_both_ranks_get_a_half() -> None:
    """A documented limit of the rule."""
    work = part(0.0, (0, 0))
    fine = [part(0.04, (10, 0), 0.04), part(0.0, (0, 0), 0.04), part(0.32, (0, 10), 0.32)]
    coarse = [part(0.36, (10, 10), 0.4)]
    assert guess([*fine, work], 2) == pytest.approx((0.04, 0.32))
    assert guess([*coarse, work], 2) == pytest.approx((0.18, 0.18))
