"""The account of a guest or of a bank: its shares, and its transfers to and from others.

Shares are conserved. The giver books a transfer before it sends it, and repeats it until the receiver has answered. The
receiver books each transfer once, by its number, and gives a repeated one the same answer. A refused transfer returns
to the giver. So each share is in one account or in one transfer, even if messages are lost, repeated or late. The
owner of an account must persist `state` after each change, before it sends a message.
"""

from __future__ import annotations

from testbed.bus.limits import MOST_COUNT
from testbed.shares.messages import Receipt, Transfer
from testbed.shares.state import AccountState, Received, Sent


class Account:
    """An account that books transfers; `owner` is the name of its guest, or of the bank, in messages."""

    def __init__(self, owner: str, state: AccountState) -> None:
        self.owner = owner
        self.state = state

    @property
    def shares(self) -> int:
        """The shares in this account, without those in transfers."""
        return self.state.shares

    @property
    def held(self) -> int:
        """The shares in this account and in its transfers without an answer: a refused transfer returns."""
        return self.state.shares + sum(sent.shares for sent in self.state.sent.values())

    @property
    def taken(self) -> dict[str, int]:
        """The shares that this account has taken so far, by giver; givers of no shares are left out."""
        return {source: last.shares for source, last in self.state.received.items() if last.shares}

    def give(self, target: str, shares: int) -> Transfer | None:
        """Book a transfer and return it, to be sent; None without shares, or while an earlier one has no answer."""
        last = self.state.sent.get(target, Sent())
        shares = min(shares, self.state.shares)
        if last.shares or shares <= 0:
            return None
        self.state.shares -= shares
        self.state.sent[target] = Sent(last.number + 1, shares)
        return self._transfer(target)

    def unanswered(self) -> list[Transfer]:
        """Return the transfers without an answer, to be sent again."""
        return [self._transfer(target) for target, sent in sorted(self.state.sent.items()) if sent.shares]

    def _transfer(self, target: str) -> Transfer:
        sent = self.state.sent[target]
        return Transfer(source=self.owner, target=target, number=sent.number, shares=sent.shares)

    def take(self, transfer: Transfer, room: int) -> Receipt | None:
        """Book a transfer to this account, refused above `room` shares; return the answer, None for an old transfer."""
        last = self.state.received.get(transfer.source, Received())
        if transfer.number == last.number + 1:
            taken = transfer.shares <= room
            shares = transfer.shares if taken else 0
            last = Received(transfer.number, taken, min(last.shares + shares, MOST_COUNT))
            self.state.received[transfer.source] = last
            self.state.shares += shares
        if transfer.number != last.number:
            return None
        return Receipt(source=transfer.source, target=self.owner, number=last.number, taken=last.taken)

    def settle(self, receipt: Receipt) -> None:
        """Apply the answer to a transfer; a repeated answer changes nothing."""
        sent = self.state.sent.get(receipt.target, Sent())
        if receipt.number != sent.number or not sent.shares:
            return
        self.state.sent[receipt.target] = Sent(sent.number, 0)
        self.state.shares += 0 if receipt.taken else sent.shares
