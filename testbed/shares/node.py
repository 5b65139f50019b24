"""The exchange of one job's shares at one node: decided once per period, from what is known of its own guests.

Agents send the messages and repeat `unanswered` ones; each message is for the account that it names as its receiver:
`target`, or `source` for a receipt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

    `banked`: guests deal with the bank; else with the guests that they wait for. Guests do not withhold shares from
    the bank, which they can ask for more, unless they are `capped`: then their shares are all that they can use, and
    they give half. `total` are the job's shares: no account takes more, whoever offers it.
    """

    def __init__(
        self, accounts: Mapping[str, AccountState], *, banked: bool, total: int, capped: bool = False
    ) -> None:  # fmt: skip
        self._total = total
        self._capped = capped
        self.accounts = {owner: Account(owner, state) for owner, state in accounts.items()}
        self._banked = banked
        self._short: dict[str, Shortage] = {}  # what guests have asked the bank for since its last grants

    def shares(self) -> dict[str, int]:
        """Return the shares of the guests."""
        return {owner: account.shares for owner, account in self.accounts.items() if owner != BANK}

    def held(self) -> dict[str, int]:
        """Return the shares of the guests with those that may still return: nobody else may have them here."""
        return {owner: account.held for owner, account in self.accounts.items() if owner != BANK}

    def exchange(self, uses: Mapping[str, Use], free: int, number: int) -> list[ExchangeMessage]:
        """Begin a period, the `number`th: give what guests do not use, and ask for what they are short of.

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

    def grant(self) -> list[ExchangeMessage]:
        """Give what the bank has to those that are short, as it does every B seconds; nothing without the bank.

        Capped guests that nobody's cap holds back, as on a node that others keep busy, would otherwise give and give.
        """
        bank = self.accounts.get(BANK)
        if bank is None:
            return []
        wanted = {guest: short.shares for guest, short in self._short.items()}
        self._short.clear()
        parts = grants(bank.shares, wanted)
        if self._capped and wanted and not any(wanted.values()):  # caps hold back nobody: all get back the same
            parts = dict.fromkeys(wanted, bank.shares // len(wanted))
        return [each for guest, part in sorted(parts.items()) for each in _given(bank, guest, part)]

    def hear(self, message: ExchangeMessage, free: int) -> list[ExchangeMessage]:
        """Take a message for an account of this node; return what is to be sent in answer.

        A guest takes what fits into the `free` shares of its node, a bank all that the job can have.
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
