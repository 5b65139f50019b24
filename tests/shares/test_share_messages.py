"""Messages of the exchange: only messages that are authenticated with the secret of the job's life are accepted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.shares.messages import (
    MOST_BYTES,
    ExchangeMessage,
    Receipt,
    SealError,
    Shortage,
    Transfer,
    _seal,
    seal,
    unseal,
)

SECRET, OTHER = b"a" * 32, b"b" * 32
MESSAGES = (
    Transfer(source="g0", target="g1", number=1, shares=100_000),
    Receipt(source="g0", target="g1", number=1, taken=True),
    Shortage(source="g0", target="g1", number=7, shares=0),
)


@pytest.mark.parametrize("message", MESSAGES)
def test_a_sealed_message_is_the_one_that_was_sent(message: ExchangeMessage) -> None:
    assert unseal(SECRET, seal(SECRET, message)) == message
    with pytest.raises(SealError, match="its seal is not one of this job"):
        unseal(OTHER, seal(SECRET, message))


@given(st.data())
def test_no_other_bytes_are_taken(data: st.DataObject) -> None:
    payload = bytearray(seal(SECRET, MESSAGES[0]))
    place = data.draw(st.integers(0, len(payload) - 1))
    payload[place] ^= data.draw(st.integers(1, 255))
    if place != 64:  # the blank
        with pytest.raises(SealError):
            unseal(SECRET, bytes(payload))


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{}", b"\xff", b"[" * 1000, b'{"type":"transfer","source":"g0","target":"g1","number":1}',
        b'{"type":"transfer","source":"g0","target":"g1","number":1,"shares":-1}',
        b'{"type":"transfer","source":"g0","target":"g1","number":1,"shares":1,"more":1}',
    ],
)  # fmt: skip
def test_a_member_that_speaks_nonsense_is_told(body: bytes) -> None:
    with pytest.raises(SealError, match="expected a transfer, a receipt or a shortage"):
        unseal(SECRET, _seal(SECRET, body) + b" " + body)


def test_a_message_is_bounded() -> None:
    with pytest.raises(SealError, match=f"expected at most {MOST_BYTES}"):
        unseal(SECRET, b"x" * (MOST_BYTES + 1))
