"""The keys that ranks of MPI jobs may publish for each other, and the times at which they may do so."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.bus.event_details import MOST_EVENT_BYTES
from testbed.bus.messages import MPI_BARRIER, GuestEvent, RankKeys, encode
from testbed.bus.mpi_barriers import MOST_BARRIERS, Barriers, Entered, UnequalKeysError
from testbed.bus.mpi_keys import (
    MOST_BYTES,
    MOST_CHARS,
    MOST_KEYS,
    MOST_SEGMENTS,
    SEGMENT_BYTES,
    BadKeysError,
    check_keys,
)

text = st.text(max_size=30)
near = st.from_regex(r"-(allgather|bcast)(-shm)?-[0-9]{1,2}-[0-9](-seg-[0-9]/[0-9])?", fullmatch=True)
values = st.one_of(text, st.from_regex(r"([0-9A-F]{2}|\[[0-9]{1,4}\]|segments=[0-9]{1,2}){0,4}", fullmatch=True))


def segmented(rank: int, parts: list[str]) -> dict[str, str]:
    """Return a long value as MPI publishes it."""
    head = f"-allgather-1-{rank}"
    count = len(parts)
    return {head: f"segments={count}"} | {f"{head}-seg-{at}/{count}": part for at, part in enumerate(parts, 1)}


def test_sizes_are_those_of_what_is_decoded() -> None:
    assert check_keys(0, {}) == {}
    assert check_keys(3, {"-allgather-1-3": "0200A3F7C0000202[8]"}) == {"-allgather-1": 16}
    assert check_keys(3, {"-allgather-shm-2-3": "0a"}) == {"-allgather-shm-2": 1}
    assert check_keys(0, {"-allgather-1-0": "00[2]" + "FF" * 507}) == {"-allgather-1": 510}
    assert check_keys(0, segmented(0, ["00[510]", "[509]FFFF", "31[7]"])) == {"-allgather-1": 511 + 511 + 8}
    assert check_keys(0, segmented(0, ["[511]"])) == {"-allgather-1": 511}
    assert check_keys(0, segmented(0, ["[511]"] * MOST_SEGMENTS)) == {"-allgather-1": MOST_BYTES}


@pytest.mark.parametrize(
    "keys",
    [
        {"-allgather-1-1": "00"},
        {"-allgather-1-00": "00"},
        {"-allgather-0-0": "00"},
        {"-bcast-1-0": "00"},
        {"PMI_process_mapping": "(vector,(0,1,2))"},
        {"hostname[0]": "vm"},
        {"-allgather-1-0": ""},
        {"-allgather-1-0": "0"},
        {"-allgather-1-0": "00 cmd=get_result"},
        {"-allgather-1-0": "00\n"},
        {"-allgather-1-0\n": "00"},
        {"-allgather-1-0": "[-1]"},
        {"-allgather-1-0": "[999999]"},
        {"-allgather-1-0": "[99999]"},
        {"-allgather-1-0": "[40000][40000]"},
        {"-allgather-1-0": "[0]" * 341},
        {"-allgather-1-0": "[1]"},
        {"-allgather-1-0": "[00005]"},
        {"-allgather-1-0": "[511]"},  # MPI cuts it
        segmented(0, ["[10]"] * 63 + ["[237]"]),
        segmented(0, ["[511]", "[510]", "00"]),
        segmented(0, ["[511]", "[512]"]),
        segmented(0, ["[512]", "[2]"]),
        segmented(0, ["[511]", ""]),
        {"-allgather-1-0": "segments=2"},
        {"-allgather-1-0": "segments=0"},
        {"-allgather-1-0": "segments=999"},
        {"-allgather-1-0-seg-1/1": "00"},
        {"-allgather-1-0": "00", "-allgather-1-0-seg-1/1": "00"},
        {**segmented(0, ["00", "00"]), "-allgather-1-0-seg-3/3": "00"},
        {**segmented(0, ["00", "00"]), "-allgather-1-0-seg-/12": "00"},
        {"-allgather-1-0": "segments=65", **{f"-allgather-1-0-seg-{i}/65": "00" for i in range(1, 66)}},
        {f"-allgather-{i % 99 + 1}-0": "00" for i in range(MOST_KEYS + 1)} | {str(i): "00" for i in range(MOST_KEYS)},
    ],
)
def test_other_keys_are_refused_in_one_line(keys: dict[str, str]) -> None:
    with pytest.raises(BadKeysError) as error:
        check_keys(0, keys)
    assert "expected" in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert len(str(error.value)) < 500


@given(st.integers(0, 2), st.dictionaries(near | text, values, max_size=6))
def test_any_keys_are_measured_or_refused(rank: int, keys: dict[str, str]) -> None:
    refused = ""
    sizes: dict[str, int] = {}
    try:
        sizes = check_keys(rank, keys)
    except BadKeysError as error:
        refused = str(error)
    assert len(refused.splitlines()) <= 1
    if not refused:
        assert set(sizes) == {key.partition("-seg-")[0].rpartition("-")[0] for key in keys}
        assert all(0 <= size <= MOST_BYTES for size in sizes.values())
        assert all(f"-{rank}" in key for key in keys)


@given(st.permutations(range(4)), st.permutations(range(4)), st.data())
def test_all_pass_when_the_last_one_has_entered(first: list[int], second: list[int], data: st.DataObject) -> None:
    barriers = Barriers(4)
    for number, order in enumerate((first, second), 1):
        for rank in order:
            keys = {f"-allgather-{number}-{rank}": "00FF"}
            entered = barriers.enter(rank, number, keys)
            assert entered is (Entered.ALL if rank == order[-1] else Entered.WAITS)
            if data.draw(st.booleans()):  # its agent repeats the report
                assert barriers.enter(rank, number, keys) is (Entered.AGAIN if rank == order[-1] else Entered.WAITS)
        assert barriers.keys == tuple(
            RankKeys(rank=rank, keys={f"-allgather-{number}-{rank}": "00FF"}) for rank in range(4)
        )
    for rank in range(4):  # a migrated guest lost the message that it may pass
        assert barriers.enter(rank, 2, {}) is Entered.AGAIN
    assert barriers.missing == (0, 1, 2, 3)


def test_barriers_come_in_order_and_are_bounded() -> None:
    barriers = Barriers(1)
    for number in (0, -1, 2, MOST_BARRIERS + 1):
        with pytest.raises(BadKeysError, match="expected barrier 1"):
            barriers.enter(0, number, {})
    for number in range(1, MOST_BARRIERS + 1):
        assert barriers.enter(0, number, {}) is Entered.ALL
    with pytest.raises(BadKeysError, match=f"barrier {MOST_BARRIERS + 1} of rank 0: expected barrier {MOST_BARRIERS}"):
        barriers.enter(0, MOST_BARRIERS + 1, {})


def test_a_rank_enters_once_with_the_same_keys_and_of_the_same_size_as_others() -> None:
    barriers = Barriers(2)
    assert barriers.enter(0, 1, {"-allgather-1-0": "0000"}) is Entered.WAITS
    with pytest.raises(BadKeysError, match="again with other keys"):
        barriers.enter(0, 1, {"-allgather-1-0": "0001"})
    with pytest.raises(BadKeysError, match="MPI key -allgather-1-1 of 3 bytes: expected 2 bytes as of rank 0"):
        barriers.enter(1, 1, {"-allgather-1-1": "000000"})

    def enter_again() -> None:
        for _ in range(10):
            barriers.enter(0, 1, {"-allgather-1-0": "0000"})

    with pytest.raises(BadKeysError, match="expected at most 8 times"):
        enter_again()
    assert barriers.missing == (1,)


@given(st.lists(st.sampled_from(["[511]", "00[510]", "[509]FFFF", "[510]", "[512]", "00", "[2]"]), max_size=5))
def test_a_value_has_no_hole_wherever_it_is_cut(parts: list[str]) -> None:
    """MPI puts segment i at offset 511 * i, with the remaining space after it."""
    sizes = [{"00": 1, "[2]": 2, "[510]": 510, "[512]": 512}.get(part, SEGMENT_BYTES) for part in parts]
    try:
        (size,) = check_keys(0, segmented(0, parts)).values()
    except BadKeysError:
        assert not parts or any(size != SEGMENT_BYTES for size in sizes)
    else:
        assert size == sum(sizes)
        assert all(one == SEGMENT_BYTES for one in sizes[:-1])
        assert 1 <= sizes[-1] <= SEGMENT_BYTES


def test_what_a_rank_publishes_in_a_barrier_fits_into_an_event() -> None:
    keys = segmented(0, ["0F" * SEGMENT_BYTES] * 57)
    check_keys(0, keys)
    event = GuestEvent(
        node="n" * 63, guest="g" * 128, event=MPI_BARRIER, mono_ns=2**63 - 1,
        detail={"session": "f" * 64, "number": MOST_BARRIERS, "keys": keys},
    )  # fmt: skip
    assert len(encode(event)) <= MOST_EVENT_BYTES
    with pytest.raises(BadKeysError, match=f"MPI keys of rank 0 of [0-9]+ characters: expected at most {MOST_CHARS}"):
        check_keys(0, segmented(0, ["0F" * SEGMENT_BYTES] * 60))


def test_ranks_gather_the_same_or_those_that_differ_are_told() -> None:
    barriers = Barriers(3)
    barriers.enter(0, 1, {"-allgather-1-0": "00"})
    barriers.enter(2, 1, {"-allgather-1-2": "00"})
    with pytest.raises(UnequalKeysError, match="MPI key -allgather-1-1 of 0 bytes: expected 1 bytes as of rank 0") as e:
        barriers.enter(1, 1, {})
    assert (e.value.ranks, e.value.others) == ((1,), (0, 2))
    assert pickle.loads(pickle.dumps(e.value)).ranks == (1,)  # noqa: S301  # our own


def test_the_keys_of_a_rank_are_bounded_over_all_barriers() -> None:
    barriers = Barriers(1)
    parts = ["[511]"] * 60

    def enter_all() -> None:
        for number in range(1, 7):
            barriers.enter(0, number, segmented(0, parts))

    with pytest.raises(BadKeysError, match=f"305 MPI keys of rank 0: expected at most {MOST_KEYS}"):
        enter_all()
