"""What the owner of an account keeps: its shares, and the last transfer to and from each other account."""

from __future__ import annotations

import msgspec

from testbed.bus.numbers import Count


class Sent(msgspec.Struct, frozen=True):
    """The last transfer to another account; without an answer while it has shares."""

    number: Count = 0
    shares: Count = 0


class Received(msgspec.Struct, frozen=True):
    """The last transfer from another account, whether it was taken, and the shares of all that were taken so far."""

    number: Count = 0
    taken: bool = False
    shares: Count = 0


class AccountState(msgspec.Struct):
    """All of an account. `shares` are those at hand; shares in transfers without an answer are beside them."""

    shares: Count
    sent: dict[str, Sent] = {}
    received: dict[str, Received] = {}
