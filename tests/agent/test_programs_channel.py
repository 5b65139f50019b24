"""The control channel's framing, with arbitrary data in arbitrary pieces."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.guests.channel import MAX_LINE_BYTES, ChannelError, Decoder, Message, decode, encode

COUNTS = st.integers(0, 2**63 - 1)
MESSAGES = st.one_of(
    st.builds(lambda at: ("held", {"at": at}), st.integers(0, 2**53)),
    st.builds(lambda units, ns: ("progress", {"units": units, "mono_ns": ns}), COUNTS, COUNTS),
    st.builds(lambda text: ("error", {"message": text}), st.text(max_size=200)),
    st.builds(lambda at, path: ("save", {"at": at, "path": path}), COUNTS, st.text(max_size=50)),
    st.builds(lambda paths: ("joined", {"segments": paths}), st.lists(st.text(max_size=20), max_size=3)),
    st.just(("hold", {})),
)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@given(st.lists(st.one_of(MESSAGES, st.binary(max_size=80)), max_size=12), st.lists(st.integers(0), max_size=8))
def test_messages_survive_any_cutting_and_any_rubbish_between_them(items, cuts):
    lines = [
        encode(item[0], **item[1]) if isinstance(item, tuple) else item.replace(b"\n", b" ") + b"\n" for item in items
    ]
    whole = b"".join(lines)
    decoder = Decoder()
    heard = [result for piece in pieces(whole, cuts) for result in decoder.feed(piece)]
    assert len(heard) == len(items)
    for item, result in zip(items, heard, strict=True):
        if isinstance(item, tuple):
            assert result == Message(*item)
        else:
            assert isinstance(result, ChannelError)


@given(st.integers(1, 4 * MAX_LINE_BYTES), st.integers(500, 100_000))
def test_an_endless_line_is_one_error_and_takes_no_memory(length, step):
    decoder = Decoder()
    data = b"x" * length + b"\n" + encode("hold")
    heard = [result for begin in range(0, len(data), step) for result in decoder.feed(data[begin : begin + step])]
    assert [type(result) for result in heard] == [ChannelError, Message]
    assert len(decoder._rest) < MAX_LINE_BYTES


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"kind": "hold!"}, "expected an object whose kind is one of"),
        ({"kind": "held"}, "held: at = None: expected int"),
        ({"kind": "held", "at": "3"}, "held: at = '3': expected int"),
        ({"kind": "held", "at": True}, "held: at = True: expected int"),
        ({"kind": "hello", "v": 2, "pid": 1}, "version 2; this side speaks 1"),
        (["hold"], "expected an object"),
        ({"kind": "held", "at": -1}, "held: at = -1: expected an int from 0"),
        ({"kind": "held", "at": 2**63}, "held: at = 9223372036854775808: expected an int from 0 below"),
        ({"kind": "ready", "ballast_mib": 1, "touch_s": float("inf")}, "touch_s = inf: expected a number within 1e15"),
        ({"kind": "ready", "ballast_mib": 1, "touch_s": 10**4000}, r"touch_s = 1000.*characters\): expected a number"),
    ],
)
def test_a_bad_message_is_told_with_its_reason(fields, complaint):
    with pytest.raises(ChannelError, match=complaint):
        decode(json.dumps(fields).encode())


def test_unknown_fields_are_ignored():
    assert decode(b'{"kind":"held","at":3,"mood":"fine"}\n') == Message("held", {"at": 3})
