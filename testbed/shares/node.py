"""The exchange of one job's shares at one node, decided once per period from the CPU use of the node's own guests.

Agents send the messages, and repeat `unanswered` transfers. The receiver of a message is the account `target`, or
`source` for a receipt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from testbed.shares.account import Account
from testbed.shares.formulas import donation, excess, grants, shortage, spare, wanted
from testbed.shares.messages import ExchangeMessage, Receipt, Shortage, Transfer
from testbed.shares.state import AccountState

BANK = "bank"


@dataclass(frozen=True, slots=True)
class Use:
    """A guest's CPU use in the last period, in shares, and the guests whose messages it waited for."""

    used: int
    upstreams: Sequence[str] = ()


class NodeExchange:
    """Accounts of the job's guests on a node, and of its bank if this node keeps it.

    If `banked`, guests exchange shares with the bank, else with the guests that they wait for. Guests give all unused
    shares to the bank, from which they can request more. If `capped`, their shares are all that they can use, and they
    give half. `total` are the job's shares: no account accepts more.
    """

    def __init__(
        self, accounts: Mapping[str, AccountState], *, banked: bool, total: int, capped: bool = False
    ) -> None:  # fmt: skip
        self._total = total
        self._capped = capped
        self.accounts = {owner: Account(owner, state) for owner, state in accounts.items()}
        self._banked = banked
        self._short: dict[str, Shortage] = {}  # requests to the bank since its last grants

    def shares(self) -> dict[str, int]:
        """Return the shares of the guests."""
        return {owner: account.shares for owner, account in self.accounts.items() if owner != BANK}

    def held(self) -> dict[str, int]:
        """Return the shares of the guests with those that may still return: the node must keep capacity for them."""
        return {owner: account.held for owner, account in self.accounts.items() if owner != BANK}

    def exchange(self, uses: Mapping[str, Use], free: int, number: int) -> list[ExchangeMessage]:
        """Begin the `number`th period: give the shares that guests do not use, and request those that they lack.

        `free` are the shares of the node that no guest has booked.
        """
        found: list[ExchangeMessage] = []
        for guest, use in sorted(uses.items()):
            account = self.accounts[guest]
            surplus = (spare if self._capped else excess)(account.shares, use.used)
            if self._banked:
                short = (wanted if self._capped else shortage)(account.shares, use.used, free)
                found += _given(account, BANK, donation(surplus, 1) if self._capped else surplus)
                found.append(Shortage(source=guest, target=BANK, number=number, shares=short))
                continue
            part = donation(surplus, len(use.upstreams))
            for upstream in use.upstreams:
                found += _given(account, upstream, part)
        return found

    def has_heard(self, guests: Collection[str]) -> bool:
        """Whether the bank is here, and all these guests have reported since its last grants what they are short of."""
        return BANK in self.accounts and self._short.keys() >= set(guests)

    def grant(self) -> list[ExchangeMessage]:
        """Give the shares of the bank to guests that are short, once per B seconds; nothing without the bank.

        When no cap holds back a guest of the job, the bank gives all back in equal parts. Capped guests that something
        else slows down, such as a busy node, would otherwise give away their caps bit by bit.
        """
        bank = self.accounts.get(BANK)
        if bank is None:
            return []
        wanted = {guest: short.shares for guest, short in self._short.items()}
        self._short.clear()
        parts = grants(bank.shares, wanted)
        if self._capped and wanted and not any(wanted.values()):  # no cap holds back a guest: equal parts
            parts = dict.fromkeys(wanted, bank.shares // len(wanted))
        return [each for guest, part in sorted(parts.items()) for each in _given(bank, guest, part)]

    def hear(self, message: ExchangeMessage, free: int) -> list[ExchangeMessage]:
        """Handle a message for an account of this node; return the messages to send in answer.

        A guest accepts transfers up to the `free` shares of its node, and a bank up to all shares of the job.
        """
        match message:
            case Receipt() if message.source in self.accounts:
                self.accounts[message.source].settle(message)
            case Transfer() if message.target in self.accounts:
                account = self.accounts[message.target]
                room = self._total - account.shares
                receipt = account.take(message, room if message.target == BANK else min(room, free))
                return [] if receipt is None else [receipt]
            case Shortage() if message.target in self.accounts:
                last = self._short.get(message.source)
                if last is None or last.number < message.number:
                    self._short[message.source] = message
        return []

    def unanswered(self) -> list[ExchangeMessage]:
        """Return the transfers without an answer, to be sent again."""
        return [transfer for account in self.accounts.values() for transfer in account.unanswered()]


def _given(account: Account, target: str, shares: int) -> list[ExchangeMessage]:
    transfer = account.give(target, shares)
    return [] if transfer is None else [transfer]
