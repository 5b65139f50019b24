"""Persistent state of an account: its shares, and the last transfer to and from each other account."""

from __future__ import annotations

import msgspec

from testbed.bus.numbers import Count


class Sent(msgspec.Struct, frozen=True):
    """The last transfer to another account; `shares` is not 0 while there is no answer."""

    number: Count = 0
    shares: Count = 0


class Received(msgspec.Struct, frozen=True):
    """The last transfer from another account, whether it was taken, and the sum of shares of all taken transfers."""

    number: Count = 0
    taken: bool = False
    shares: Count = 0


class AccountState(msgspec.Struct):
    """State of an account. `shares` does not include shares in transfers without an answer."""

    shares: Count
    sent: dict[str, Sent] = {}
    received: dict[str, Received] = {}
