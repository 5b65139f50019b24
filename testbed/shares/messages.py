"""Messages between the agents of a job's guests, sealed by a secret that only these agents and the controller have.

The controller makes a new secret for each life of a job, so that messages of an earlier life are rejected. A message
is its seal (HMAC-SHA-256 in hexadecimal digits), a space, and a JSON object.
"""

from __future__ import annotations

import hashlib
import hmac

import msgspec

from testbed.bus.messages import GuestName
from testbed.bus.numbers import Count
from testbed.errors import TestbedError

MOST_BYTES = 4096
_SEAL_CHARS = 64


class SealError(TestbedError):
    """A message that was not sealed with the job's secret, or that cannot be decoded."""


class Transfer(msgspec.Struct, frozen=True, kw_only=True, tag="transfer", forbid_unknown_fields=True):
    """Shares for `target`, the `number`th transfer of `source` to it."""

    source: GuestName
    target: GuestName
    number: Count
    shares: Count


class Receipt(msgspec.Struct, frozen=True, kw_only=True, tag="receipt", forbid_unknown_fields=True):
    """The answer of `target` to a transfer of `source`."""

    source: GuestName
    target: GuestName
    number: Count
    taken: bool


class Shortage(msgspec.Struct, frozen=True, kw_only=True, tag="shortage", forbid_unknown_fields=True):
    """The shares that `source` requests from the bank `target`; the message with the highest number counts."""

    source: GuestName
    target: GuestName
    number: Count
    shares: Count


ExchangeMessage = Transfer | Receipt | Shortage
_ENCODER, _DECODER = msgspec.json.Encoder(), msgspec.json.Decoder(ExchangeMessage)


def seal(secret: bytes, message: ExchangeMessage) -> bytes:
    """Return the sealed bytes of a message."""
    body = _ENCODER.encode(message)
    return _seal(secret, body) + b" " + body


def unseal(secret: bytes, payload: bytes) -> ExchangeMessage:
    """Return the message of sealed bytes; raises `SealError` if they were not sealed with this secret."""
    if len(payload) > MOST_BYTES:
        raise SealError(f"{len(payload)} bytes: expected at most {MOST_BYTES}")
    found, body = payload[:_SEAL_CHARS], payload[_SEAL_CHARS + 1 :]
    if not hmac.compare_digest(found, _seal(secret, body)):
        raise SealError("its seal is not one of this job")
    try:
        message: ExchangeMessage = _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise SealError(f"expected a transfer, a receipt or a shortage: {error}") from error
    return message


def _seal(secret: bytes, body: bytes) -> bytes:
    return hmac.new(secret, body, hashlib.sha256).hexdigest().encode()
