"""Failure codes of jobs, for comparison by programs; docs/journal.md has a table of them.

The controller writes the code into the journal. For entries of older versions without a code, it is derived from the
text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from testbed.bus.failure_codes import MEANINGS

UNKNOWN = "unknown"
REASONS = {
    **{code.value: meaning for code, meaning in MEANINGS.items()},
    UNKNOWN: "the journal gives no reason, or one that this version does not know",
}
"""Codes with their meanings."""

_VERB = r"start|cap|save|transfer|restore|migrate"
_COULD_NOT = re.compile(rf"could not ({_VERB}): (.*)", re.DOTALL)
_NODE = re.compile(r"node (?P<node>\S+) (?:is|was) lost \((?P<reason>.*)\)", re.DOTALL)
_RESTARTED_AGENT = re.compile(r"node \S+: its agent was restarted")
_GUEST = re.compile(r"task \d+: (.*)", re.DOTALL)
_WRONG = re.compile(r"it is done with checksum \S* ?; its work comes to \S*")
_BEGINNINGS = {
    "does-not-fit": re.compile(r"does not fit on the "),
    "node-lost": re.compile(r"its image is away: node \S+ is lost "),
    "image-lost": re.compile(r"node \S+ has its image no more"),
    "no-progress": re.compile(r"(?:it )?(?:made )?no progress (?:for|within) "),
}
_RESTARTED = re.compile(r"(?:\d+ of \d+ tasks: )?[^\s:]+: [a-z_-]+: failed: interrupted: the agent was restarted")
# Only the agent's own text about an image: the text after "failed: " may be a program's.
_IMAGE = re.compile(
    r"[^\s:]+: (?:start|fetch-image): failed: image \S+?(?: from \S+?)?: "
    r"(?:(?:\[Errno 2\] )?No such file or directory.*|digest \S+, expected \S+|another size)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason of a job's failure: a code, of `REASONS` or of a later version, and the text for people."""

    code: str
    text: str


def reason_of(detail: str | None, code: object = None) -> Reason:
    """Return the reason of a failed job, with its `code`, or a code derived from `detail` if `code` is no text."""
    text = detail or ""
    return Reason(code if isinstance(code, str) and code else classify(text), text)


def classify(text: str) -> str:
    """Return the code for a failure's text, in the wording of controllers that wrote no codes.

    Patterns match from the beginning of the text, because later parts may be the output of programs.
    """
    if guest := _GUEST.fullmatch(text):
        return "wrong-result" if _WRONG.fullmatch(guest[1]) else "guest-failed"
    if node := _NODE.fullmatch(text):
        return "agent-restarted" if node["reason"] == "its agent restarted" else "node-lost"
    if _RESTARTED_AGENT.fullmatch(text):
        return "agent-restarted"
    if action := _COULD_NOT.fullmatch(text):
        return _of_operation(*action.groups())
    known = (code for code, pattern in _BEGINNINGS.items() if pattern.match(text))
    return next(known, UNKNOWN)


def _of_operation(verb: str, error: str) -> str:
    if _RESTARTED.fullmatch(error):
        return "agent-restarted"
    if verb in ("transfer", "restore") and _IMAGE.fullmatch(error):
        return "image-lost"
    return f"{verb}-failed"
