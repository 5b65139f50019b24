"""Malformed or absurd replies: the error names the node and the value, and the run continues. In virtual time."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.control.disturbed import Disturbed
from support.control.interrupting import Interrupting
from support.control.rehearsal import five_jobs, movers, rehearse

from node_agent.agent import Agent
from testbed.bus.messages import AnyAction, Hold, ListGuests, Migrate, Ping, Release, Save, SetCaps, Start
from testbed.lab.live_migration import Moved
from testbed.lab.operations import _Caps, _Released, _Started
from testbed.lab.replies import Guests, ReplyError, read_reply
from testbed.lab.saving import Held, Saved
from testbed.scheduling.workload.jobs import Job

LIAR = "node-1"
Lie = Callable[[dict[str, object]], dict[str, object]]


def says(**changes: object) -> Lie:
    """Return a lie that changes some fields of a reply."""
    return lambda reply: {**reply, **changes}


def lacks(name: str) -> Lie:
    """Return a lie that leaves a field out."""
    return lambda reply: {key: value for key, value in reply.items() if key != name}


def lying(monkeypatch: pytest.MonkeyPatch, kind: type[AnyAction], lie: Lie) -> list[dict[str, object]]:
    """Let the agent of a node lie in replies to a kind of command for guests of jobs; return the true replies."""
    perform = Agent.perform
    truths: list[dict[str, object]] = []

    async def lies(self: Agent, action: AnyAction) -> dict[str, object]:
        truth = await perform(self, action)
        calibrates = "alone" in str(action)
        if self._config.node != LIAR or not isinstance(action, kind) or calibrates:
            return truth
        truths.append(truth)
        return lie(truth)

    monkeypatch.setattr(Agent, "perform", lies)
    return truths


CAPS = "its reply to set-caps says caps = "
LIES = [
    (SetCaps, says(caps=7), "cap-failed", CAPS + "7: expected `object`, got `int`"),
    (SetCaps, says(caps={}), "cap-failed", CAPS + "{}: expected the cap of guest dfrs-"),
    (SetCaps, lambda told: {"caps": dict.fromkeys(told["caps"], "all")}, "cap-failed", "'all'}: expected `float`"),
    (
        SetCaps,
        lambda told: {"caps": dict.fromkeys(told["caps"], 1e9)},
        "cap-failed",
        "1000000000.0}: expected `float` <=",
    ),
    (SetCaps, lambda told: {"caps": dict.fromkeys(told["caps"], -1.0)}, "cap-failed", "-1.0}: expected `float` >= 0"),
    (Hold, says(at=-1), "save-failed", "its reply to hold says at = -1: expected `int` >= 0"),
    (Hold, says(at=10**15), "save-failed", "says at = 1000000000000000: expected at most "),
    (Hold, says(wall_ns="now"), "save-failed", "says wall_ns = 'now': expected `int`, got `str`"),
    (Save, says(bytes=-5), "save-failed", "its reply to save says bytes = -5: expected `int` >= 0"),
    (Save, says(bytes=2**62), "save-failed", "says bytes = 4611686018427387904: expected `int` <= "),
    (Save, says(bytes=2**49), "save-failed", "its reply to save says bytes = 562949953421312: expected at most "),
    (Save, says(write_s=1e12), "save-failed", "says write_s = 1000000000000.0: expected `float` <= "),
    (Save, lacks("digest"), "save-failed", "object missing required field `digest`"),
    (Save, says(digest="0" * 10**6), "save-failed", "(1000002 characters): expected `str` of length <= 128"),
    (Start, says(cached_frac=7.0), "", "its reply to start says cached_frac = 7.0: expected `float` <= 1"),
]


@pytest.mark.parametrize(("kind", "lie", "code", "words"), LIES)
def test_a_lie_fails_the_jobs_of_that_node_with_a_line_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[AnyAction], lie: Lie, code: str, words: str
) -> None:
    truths = lying(monkeypatch, kind, lie)
    jobs = five_jobs()
    if kind is not SetCaps:  # this policy sets no caps outside of other operations
        monkeypatch.setattr("support.control.rehearsal.parse", lambda name, _period_s: Interrupting(name, 60.0))
        jobs = [Job(1, 0, 1, 1.0, 0.3, 600), Job(2, 30, 2, 1.0, 0.3, 600), Job(3, 60, 3, 0.5, 0.2, 600)]
    result, _ = rehearse(tmp_path, jobs)
    assert truths, "the node never got such a command"
    failed = result.summary["failed"]
    assert failed
    assert result.summary["done"] + len(failed) == len(jobs)
    assert all(f"node {LIAR}: " in text and words in text for text in failed.values()), failed
    assert set(result.summary["failure_codes"].values()) <= ({code} if code else {"start-failed", "restore-failed"})


def test_a_lie_about_a_live_migration_is_told_and_both_ends_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lying(monkeypatch, Migrate, says(bytes=-1)) == []
    result, journal = rehearse(
        tmp_path, movers(), policy="/per/OPT=MIN", extras="whole,live", migration={"mechanism": "live"}
    )
    assert result.summary["done"] == len(movers())
    told = [entry for entry in journal if entry["kind"] == "migration" and "error" in entry]
    assert told
    for entry in told:
        assert entry["error"] == f"node {LIAR}: its reply to migrate says bytes = -1: expected `int` >= 0"
        assert (entry["at_source"], entry["at_target"]) == (False, True)


def test_a_lie_about_a_release_fails_its_restore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.control.rehearsal.parse", lambda name, _period_s: Interrupting(name, 60.0))
    lying(monkeypatch, Release, says(wall_ns=1e30))
    result, _ = rehearse(tmp_path, [Job(1, 0, 1, 1.0, 0.3, 600)], extras="whole")
    (text,) = result.summary["failed"].values()
    assert text.startswith(f"could not restore: node {LIAR}: its reply to release says wall_ns = 1e+30: expected `int`")


def test_a_lie_about_the_guests_of_a_node_that_is_back_is_journalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lie(told: dict[str, object]) -> dict[str, object]:
        names = [guest["guest"] for guest in told["guests"]]
        return {**told, "guests": [{"guest": 7}]} if names and "alone" not in names[0] else told

    lying(monkeypatch, ListGuests, lie)
    world = Disturbed(lambda world: world.cut(30.0, "agent-node-1"))
    _, journal = world.run(tmp_path, five_jobs())
    (entry,) = [entry for entry in journal if entry["kind"] == "welcome"]
    assert entry["node"] == LIAR
    assert (
        entry["error"] == f"node {LIAR}: its reply to list-guests says guests[0].guest = 7: expected `str`, got `int`"
    )


@pytest.mark.parametrize("lie", [says(caps={}), lambda told: {"caps": dict.fromkeys(told["caps"], 0.003)}])
def test_a_node_has_no_say_about_the_caps_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: Lie) -> None:
    truths = lying(monkeypatch, SetCaps, lambda told: {"caps": {**told["caps"], "dfrs-other": 1.0}})
    result, _ = rehearse(tmp_path, five_jobs())
    assert truths
    assert result.summary["done"] == 5
    lying(monkeypatch, SetCaps, lie)
    result, _ = rehearse(tmp_path, five_jobs())
    assert all(f"node {LIAR}: " in text for text in result.summary["failed"].values())


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = (
    "at",
    "wall_ns",
    "bytes",
    "digest",
    "write_s",
    "caps",
    "guests",
    "images",
    "cached_frac",
    "elapsed_s",
)


@given(
    st.one_of(plain, st.dictionaries(st.sampled_from(NAMES), plain)),
    st.sampled_from([_Caps, Held, _Released, Saved, _Started, Guests, Moved]),
)
def test_any_reply_is_read_or_refused_in_one_line(reply: object, kind: type) -> None:
    refused: ReplyError | None = None
    try:
        assert isinstance(read_reply("node-7", Ping(), reply, kind), kind)
    except ReplyError as error:
        refused = error
    if refused is not None:
        assert str(refused).startswith("node node-7: its reply to ping ")
        assert len(str(refused).splitlines()) == 1
        assert len(str(refused)) < 500
        again = pickle.loads(pickle.dumps(refused))  # noqa: S301  # its own bytes
        assert (str(again), again.path) == (str(refused), refused.path)
