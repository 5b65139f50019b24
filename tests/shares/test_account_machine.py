"""Shares are conserved under any faults of messages and of the owners of accounts: random schedules of both."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from testbed.shares.account import Account
from testbed.shares.messages import ExchangeMessage, Receipt, Shortage, Transfer
from testbed.shares.state import AccountState

EXAMPLES = int(os.environ.get("DFRS_SHARES_EXAMPLES", "500"))
OWNERS = ("bank", "g0", "g1", "g2")
EACH = 1000
OWNER = st.sampled_from(OWNERS)
DEATH = st.sampled_from(["no", "before it is kept", "before it is sent"])


class AccountMachine(RuleBasedStateMachine):
    """Accounts whose owners sometimes die, and a bus that loses, doubles, delays and reorders messages."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = {owner: msgspec.json.encode(AccountState(EACH)) for owner in OWNERS}
        self.accounts = {owner: self.load(owner) for owner in OWNERS}
        self.bus: list[ExchangeMessage] = []

    def load(self, owner: str) -> Account:
        return Account(owner, msgspec.json.decode(self.kept[owner], type=AccountState))

    def act(self, owner: str, death: str, act: Callable[[Account], list[ExchangeMessage]]) -> None:
        """Let an owner change its account, store it and send; it may die in between, and is then replaced."""
        account = self.accounts[owner]
        messages = act(account)
        if death != "before it is kept":
            self.kept[owner] = msgspec.json.encode(account.state)
        if death == "no":
            self.bus += messages
        else:
            self.accounts[owner] = self.load(owner)

    @rule(owner=OWNER, to=OWNER, shares=st.integers(0, 2 * EACH), death=DEATH)
    def give(self, owner: str, to: str, shares: int, death: str) -> None:
        if owner != to:
            self.act(owner, death, lambda account: [each for each in [account.give(to, shares)] if each])

    @rule(owner=OWNER)
    def repeat(self, owner: str) -> None:
        self.bus += self.accounts[owner].unanswered()

    @rule(place=st.integers(0, 99), room=st.sampled_from([0, 10, 10 * EACH]), death=DEATH, stays=st.booleans())
    def deliver(self, place: int, room: int, death: str, stays: bool) -> None:
        if not self.bus:
            return
        place %= len(self.bus)
        message = self.bus[place] if stays else self.bus.pop(place)
        self.hear(message, room, death)

    def hear(self, message: ExchangeMessage, room: int, death: str) -> None:
        def take(account: Account) -> list[ExchangeMessage]:
            match message:
                case Transfer():
                    receipt = account.take(message, room)
                    return [] if receipt is None else [receipt]
                case Receipt():
                    account.settle(message)
                    return []
                case Shortage():
                    raise AssertionError(message)

        self.act(message.source if isinstance(message, Receipt) else message.target, death, take)

    @rule(place=st.integers(0, 99))
    def lose(self, place: int) -> None:
        if self.bus:
            del self.bus[place % len(self.bus)]

    @invariant()
    def shares_are_conserved(self) -> None:
        assert all(account.shares >= 0 for account in self.accounts.values())
        assert sum(account.shares for account in self.accounts.values()) + self.on_their_way() == EACH * len(OWNERS)

    def on_their_way(self) -> int:
        """Return the shares in transfers that their receivers have not taken."""
        found = 0
        for owner, account in self.accounts.items():
            for target, sent in account.state.sent.items():
                received = self.accounts[target].state.received.get(owner)
                taken = received is not None and received.number == sent.number and received.taken
                found += 0 if taken else sent.shares
        return found

    def teardown(self) -> None:
        """Assert that each transfer is answered once the bus works."""
        self.bus.clear()
        for owner in OWNERS:
            self.repeat(owner)
        while self.bus:
            self.hear(self.bus.pop(), 10 * EACH, "no")
        assert not [each for account in self.accounts.values() for each in account.unanswered()]
        assert sum(account.shares for account in self.accounts.values()) == EACH * len(OWNERS)
        for owner, account in self.accounts.items():  # the sums of taken shares explain each account
            given = sum(other.taken.get(owner, 0) for other in self.accounts.values())
            assert account.shares == EACH + sum(account.taken.values()) - given


def test_shares_are_conserved() -> None:
    found = settings(
        max_examples=EXAMPLES, stateful_step_count=50, deadline=None, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    run_state_machine_as_test(AccountMachine, settings=found)
