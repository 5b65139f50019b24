"""Errors for people, each one line with the expected and the actual value, and helpers for their texts."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from enum import StrEnum


class FailureCode(StrEnum):
    """Failure codes of jobs, described in `testbed.bus.failure_codes`; a later version may have more codes."""

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
    """Base of all errors of the testbed; `exit_code` is the exit code of the command line.

    `failure_code` is the code of a job that fails because of this error, None if it depends on the operation.
    `suspicious` errors are caused by requests or messages that no honest party sends, and should be reported to the
    operator of the lab.
    """

    __test__ = False  # the name begins with "Test", yet the class is no test
    exit_code = 1
    failure_code: FailureCode | None = None
    suspicious = False

    def __init__(self, text: str = "") -> None:
        self._text = text  # `args` keep the arguments of the constructor, with which pickle re-creates the error

    def __str__(self) -> str:
        return self._text


class UserError(TestbedError):
    """An invalid input of the user, such as a file, a key, a value or a name (exit code 2)."""

    exit_code = 2


class InputError(UserError):
    """A file has an invalid value.

    `where` is the file, with `:line` if known; `field` is the key or column, `found` the value in the file, and
    `expected` a description of valid values.
    """

    def __init__(self, where: str, field: str, found: object, expected: str) -> None:
        self.where = where
        self.field = field
        self.found = found
        self.expected = expected
        super().__init__(f"{where}: {field} = {shown(found)}: expected {expected}")


class RunError(TestbedError):
    """A failure of a run or an operation that is not caused by invalid input (exit code 1)."""


def shown(value: object, chars: int = 200) -> str:
    """Return the `repr` of a value for a message, truncated to `chars` characters."""
    text = repr(value)
    return text if len(text) <= chars else f"{text[:chars]}… ({len(text)} characters)"


def printable(text: str, chars: int = 1000) -> str:
    """Return an untrusted text for the screen: one line of at most `chars` characters, without control sequences."""
    cut = text if len(text) <= chars else f"{text[:chars]}…"
    return cut if cut.isprintable() else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in cut)


def printable_lines(text: str) -> str:
    """Return an untrusted text of several lines, such as a node's log, with each line as in `printable`."""
    return "\n".join(printable(line.replace("\t", "    ")) for line in text.rstrip("\n").split("\n"))


def nearest(word: str, known: Iterable[str], count: int = 3) -> str:
    """Return the known names that are most similar to `word`, as the end of a sentence, or an empty string."""
    matches = get_close_matches(word, list(known), n=count, cutoff=0.5)
    return f"; nearest: {', '.join(matches)}" if matches else ""
