"""The lease: the controller that an agent obeys, by the agent's clock, for each state and event."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from testbed.bus.lease import LeaseGuard, token_digest
from testbed.bus.messages import Lease, encode

TOPIC = "testbed/v1/local/lease"
BY_BOB = "testbed/v1/local/release/bob"


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def record(
    token: str, ttl_s: float = 10.0, expires_unix_s: float = 1e12, *, released: bool = False,
    proof: str | None = None, **more: Any,
) -> bytes:  # fmt: skip
    return encode(
        Lease(
            digest=token_digest(token), holder="host:7", ttl_s=ttl_s, expires_unix_s=expires_unix_s, released=released,
            token=(token if proof is None else proof) if released else "", **more,
        )
    )  # fmt: skip


def test_nobody_is_obeyed_before_a_lease_is_heard() -> None:
    guard = LeaseGuard(Clock())
    assert not guard.allows("")
    assert not guard.allows("a")
    assert guard.remaining_s == 0


def test_the_holder_is_obeyed_until_it_lets_go() -> None:
    guard = LeaseGuard(Clock())
    assert not guard.hear(TOPIC, record("a"))
    assert guard.allows("a")
    assert not guard.allows("b")
    assert not guard.hear(TOPIC, record("b", released=True)), "a stranger cannot release it"
    assert guard.hear(TOPIC, record("a", released=True))
    assert not guard.allows("a")


def test_a_release_that_its_holder_did_not_sign_is_ignored() -> None:
    guard = LeaseGuard(Clock())
    guard.hear(TOPIC, record("a"))
    digest = token_digest("a")
    for forged in (
        record("a", released=True, proof=""), record("a", released=True, proof="b", released_by="mallory"),
        record("a", released=True, proof=digest), b"",
    ):  # fmt: skip
        assert not guard.hear(TOPIC, forged)
        assert guard.allows("a")
    assert guard.released_by == ""


def test_a_renewal_prolongs_a_lease_and_changes_none_of_its_terms() -> None:
    clock = Clock()
    guard = LeaseGuard(clock)
    guard.hear(TOPIC, record("a", ttl_s=90.0, on_controller_loss="keep"))
    guard.hear(TOPIC, record("a", ttl_s=1e-9, on_controller_loss="remove"))
    clock.now_s = 80.0
    assert guard.allows("a")
    assert guard.on_controller_loss == "keep"
    guard.hear(TOPIC, record("a", ttl_s=1e-9))
    clock.now_s = 160.0
    assert guard.allows("a")


def test_a_release_topic_says_who_ends_a_lease_and_cannot_begin_one() -> None:
    guard = LeaseGuard(Clock())
    assert not guard.hear(BY_BOB, record("x"))
    assert not guard.live, "a release topic gives nobody the lease"
    guard.hear(TOPIC, record("a"))
    assert not guard.hear(BY_BOB, record("b", released=True, proof=""))
    assert guard.allows("a"), "the release was of another lease"
    assert guard.hear(BY_BOB, record("a", released=True, proof="", released_by="alice@her-machine " + "x" * 1000))
    assert guard.released_by.startswith("bob (alice@her-machine ")
    assert len(guard.released_by) < 120


def test_a_lease_has_a_name_that_does_not_give_its_token_away() -> None:
    clock = Clock()
    guard = LeaseGuard(clock)
    assert guard.name == ""
    guard.hear(TOPIC, record("f" * 32))
    first = guard.name
    assert first.startswith("host:7/")
    assert "f" * 32 not in first
    guard.hear(TOPIC, record("f" * 32, expires_unix_s=2e12))
    assert guard.name == first, "a renewal is the same lease"
    clock.now_s = 10.5
    assert guard.name == ""
    guard.hear(TOPIC, record("e" * 32))
    assert guard.name not in {"", first}


def test_another_token_is_ignored_while_the_lease_lives_and_taken_when_it_has_run_out() -> None:
    clock = Clock()
    guard = LeaseGuard(clock)
    guard.hear(TOPIC, record("a"))
    guard.hear(TOPIC, record("b"))
    assert guard.allows("a")
    clock.now_s = 10.5
    assert guard.run_out()
    assert not guard.run_out(), "the lease expires once"
    guard.hear(TOPIC, record("b"))
    assert guard.allows("b")


def test_a_retained_lease_that_ended_long_ago_is_not_taken() -> None:
    guard = LeaseGuard(Clock(), unix_s=lambda: 1000.0)
    guard.hear(TOPIC, record("a", expires_unix_s=999.0))
    assert not guard.live


def test_a_renewal_that_crossed_a_forced_end_does_not_bring_the_lease_back() -> None:
    guard = LeaseGuard(Clock())
    guard.hear(TOPIC, record("a"))
    assert guard.hear(BY_BOB, record("a", released=True, released_by="other:8", proof=""))
    assert guard.released_by == "bob (other:8)"
    assert not guard.hear(TOPIC, record("a"))
    assert not guard.live
    guard.hear(TOPIC, record("b"))
    assert guard.allows("b")


def test_a_lease_that_ran_out_unnoticed_before_the_next_is_told_once() -> None:
    clock = Clock()
    guard = LeaseGuard(clock)
    guard.hear(TOPIC, record("a"))
    clock.now_s = 10.5
    guard.hear(TOPIC, record("b"))
    assert guard.run_out()
    assert not guard.run_out()
    assert guard.allows("b")


def test_an_agent_remembers_no_token() -> None:
    guard = LeaseGuard(Clock())
    guard.hear(TOPIC, record("a"))
    assert guard.allows("a")
    assert not guard.allows("b")
    assert "a" not in [value for value in vars(guard).values() if isinstance(value, str)]


def test_a_broken_record_changes_nothing() -> None:
    guard = LeaseGuard(Clock())
    guard.hear(TOPIC, record("a"))
    assert not guard.hear(TOPIC, b"{")
    assert guard.allows("a")


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["renew", "release", "wait"]), st.floats(0, 15))))
def test_at_most_one_token_is_ever_obeyed(events: list[tuple[str, str, float]]) -> None:
    clock = Clock()
    guard = LeaseGuard(clock)
    heard: dict[str, float] = {}
    for token, event, seconds in events:
        if event == "wait":
            clock.now_s += seconds
        else:
            guard.hear(TOPIC, record(token, released=event == "release"))
            if event == "renew":
                heard[token] = clock.now_s
            else:
                heard.pop(token, None)
        assert not (guard.allows("a") and guard.allows("b"))
        for known in "ab":
            if guard.allows(known):
                assert clock.now_s < heard[known] + 10.0
