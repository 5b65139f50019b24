"""The codes of failed jobs, for every wording of a failure by controllers that wrote no codes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.measure.reasons import REASONS, classify, reason_of

PAGE = Path(__file__).parents[2] / "docs" / "journal.md"
IMAGE = "dfrs-bca682-j3-t0-s1.img"
TEXTS = {
    "task 1: it is done with checksum 00ff; its work comes to e188": "wrong-result",
    "task 0: it ended by itself: exit code 3; it printed: node n was lost (silent for 9 s)": "guest-failed",
    "task 12: it ended without a word": "guest-failed",
    "task 0: it printed: it is done with checksum 00ff; its work comes to e188": "guest-failed",
    "task 0: a process in it ended with status 1\ncould not save: no": "guest-failed",
    "node node-b was lost (silent for 61.0 s)": "node-lost",
    "node node-b was lost (its agent vanished)": "node-lost",
    "node node-b was lost (its agent ended)": "node-lost",
    "node node-b was lost (its agent restarted)": "agent-restarted",
    "node node-b is lost (silent for 61.0 s)": "node-lost",
    "node node-b: its agent was restarted": "agent-restarted",
    "node node-b has its image no more": "image-lost",
    "its image is away: node node-b is lost (silent for 61.0 s)": "node-lost",
    "does not fit on the 2 nodes that are there": "does-not-fit",
    "does not fit on the 1 nodes that are left": "does-not-fit",
    "no progress for 60 s": "no-progress",
    "it made no progress for 60 s on node-a": "no-progress",
    "could not start: node-0: start: failed: out of pids": "start-failed",
    "could not start: node-0: mpi-join: failed: the rank does not come up": "start-failed",
    "could not start: node-a: start: no acknowledgement within 8 s, sent 4 times": "start-failed",
    "could not cap: node-a: set-caps: failed: guest dfrs-1-j1-t0: its cap could not be set": "cap-failed",
    "could not save: 1 of 2 tasks: node-a: save: failed: no space left": "save-failed",
    "could not save: 1 of 1 tasks: node-a: save: failed: interrupted: the agent was restarted": "agent-restarted",
    "could not cap: node-b: set-caps: failed: interrupted: the agent was restarted": "agent-restarted",
    f"could not transfer: node-b: fetch-image: failed: image {IMAGE} from 10.0.0.1:4150: no answer of an agent: x":
        "transfer-failed",
    f"could not transfer: node-b: fetch-image: failed: image {IMAGE}: 99 MiB to come, 3 MiB free in /images":
        "transfer-failed",
    f"could not transfer: node-b: fetch-image: failed: image {IMAGE} from 10.0.0.1:4150: "
    f"[Errno 2] No such file or directory: '/i/{IMAGE}'": "image-lost",
    f"could not transfer: node-b: fetch-image: failed: image {IMAGE} from 10.0.0.1:4150: another size": "image-lost",
    f"could not restore: node-b: start: failed: image {IMAGE}: No such file or directory": "image-lost",
    f"could not restore: node-b: start: failed: image {IMAGE}: digest 0123456789ab…, expected ba9876543210…":
        "image-lost",
    "could not restore: node-b: start: expired: not done within 120 s": "restore-failed",
    f"could not start: node-b: start: failed: image {IMAGE}: No such file or directory": "start-failed",
    "could not migrate: dfrs-1-j2-t1 is at neither end of its migration: node-a: migrate: x; y": "migrate-failed",
    "": "unknown",
    "something of a later version": "unknown",
    "could not teleport: no": "unknown",
}  # fmt: skip


@pytest.mark.parametrize(("text", "code"), TEXTS.items())
def test_a_text_has_its_code(text: str, code: str) -> None:
    assert classify(text) == code
    assert reason_of(text).code == code


def test_every_code_of_the_time_without_codes_is_told_of_some_text() -> None:
    assert set(TEXTS.values()) == set(REASONS) - {"deleted", "fenced", "lease-lost", "old-generation", "unable"}


@given(st.text())
def test_any_text_has_one_of_the_codes(text: str) -> None:
    assert classify(text) in REASONS


@given(st.sampled_from(sorted(TEXTS)), st.text(max_size=20))
def test_what_a_program_printed_does_not_decide(printed: str, more: str) -> None:
    assert classify(f"task 3: it ended by itself: exit code 1; it printed: {printed}{more}") == "guest-failed"


def test_the_code_of_an_entry_goes_before_its_text() -> None:
    found = reason_of("node n was lost (silent for 9 s)", "of-a-later-version")
    assert (found.code, found.text) == ("of-a-later-version", "node n was lost (silent for 9 s)")
    for none in (None, "", 7):
        assert reason_of("node n was lost (silent for 9 s)", none).code == "node-lost"


def test_the_page_has_the_codes_and_their_meanings() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Reasons")[2].partition("\n## ")[0]
    assert dict(re.findall(r"^\| `([a-z-]+)` \| (.*?) *\|$", section, re.MULTILINE)) == REASONS
