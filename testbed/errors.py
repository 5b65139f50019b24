"""Errors that a person reads: one line that names the expected and the actual value."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from enum import StrEnum


class FailureCode(StrEnum):
    """Why a job failed; a later version may have more codes. `testbed.bus.failure_codes` says what each means."""

    GUEST_FAILED = "guest-failed"
    WRONG_RESULT = "wrong-result"
    NO_PROGRESS = "no-progress"
    NODE_LOST = "node-lost"
    AGENT_RESTARTED = "agent-restarted"
    LEASE_LOST = "lease-lost"
    FENCED = "fenced"
    OLD_GENERATION = "old-generation"
    IMAGE_LOST = "image-lost"
    DOES_NOT_FIT = "does-not-fit"
    START_FAILED = "start-failed"
    CAP_FAILED = "cap-failed"
    SAVE_FAILED = "save-failed"
    TRANSFER_FAILED = "transfer-failed"
    RESTORE_FAILED = "restore-failed"
    MIGRATE_FAILED = "migrate-failed"
    UNABLE = "unable"
    DELETED = "deleted"


class TestbedError(Exception):
    """Base of all errors of the testbed; `exit_code` is what the command line returns.

    `failure_code` is the code of a job that fails for this error, None where that depends on what was being done.
    `suspicious` errors are caused by requests or messages that no honest party sends: the lab's operator should get
    them.
    """

    __test__ = False  # the name begins with "Test", yet the class is no test
    exit_code = 1
    failure_code: FailureCode | None = None
    suspicious = False

    def __init__(self, text: str = "") -> None:
        self._text = text  # `args` stay what the error is made of, by which it is made again in another process

    def __str__(self) -> str:
        return self._text


class UserError(TestbedError):
    """An invalid input of the user: a file, a key, a value, a name (exit code 2)."""

    exit_code = 2


class InputError(UserError):
    """A file holds a bad value.

    `where` is the file, with `:line` where there is one; `field` the key or column; `found` the value as it was read;
    `expected` a description of valid values.
    """

    def __init__(self, where: str, field: str, found: object, expected: str) -> None:
        self.where = where
        self.field = field
        self.found = found
        self.expected = expected
        super().__init__(f"{where}: {field} = {shown(found)}: expected {expected}")


class RunError(TestbedError):
    """A run could not do what it was asked, through no fault in its input (exit code 1)."""


def shown(value: object, chars: int = 200) -> str:
    """Return how Python writes a value, cut to so many characters, for a line that a person reads."""
    text = repr(value)
    return text if len(text) <= chars else f"{text[:chars]}… ({len(text)} characters)"


def printable(text: str, chars: int = 1000) -> str:
    """Return a foreign text for a person's screen: one line without control sequences, cut to so many."""
    cut = text if len(text) <= chars else f"{text[:chars]}…"
    return cut if cut.isprintable() else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in cut)


def printable_lines(text: str) -> str:
    """Return the same of a text that may have several lines, as logs of nodes have."""
    return "\n".join(printable(line.replace("\t", "    ")) for line in text.rstrip("\n").split("\n"))


def nearest(word: str, known: Iterable[str], count: int = 3) -> str:
    """Return the known names nearest to `word`, as the end of a sentence, or an empty string."""
    matches = get_close_matches(word, list(known), n=count, cutoff=0.5)
    return f"; nearest: {', '.join(matches)}" if matches else ""
