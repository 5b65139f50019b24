"""What can be read of a command that is no valid one."""

from __future__ import annotations

import msgspec


class Envelope(msgspec.Struct, frozen=True):
    """What can be read of a command that is no valid one: enough to tell its sender."""

    id: str = ""
    reply_to: str = ""


def decode_envelope(payload: bytes) -> Envelope:
    """Return id and reply topic of a bad command; both are empty if even they cannot be read."""
    try:
        return msgspec.json.decode(payload, type=Envelope)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return Envelope()
