"""Id and reply topic of a command that cannot be decoded."""

from __future__ import annotations

import msgspec


class Envelope(msgspec.Struct, frozen=True):
    """The readable part of an invalid command: enough to answer its sender."""

    id: str = ""
    reply_to: str = ""


def decode_envelope(payload: bytes) -> Envelope:
    """Return id and reply topic of an invalid command; both are empty if they cannot be read either."""
    try:
        return msgspec.json.decode(payload, type=Envelope)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return Envelope()
