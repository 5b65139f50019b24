"""Suspicious acts: acts in a node's name that no honest node commits; they are counted, and reported in groups.

An attacker chooses the rate of its acts, so one report covers all acts since the last report. The first report is made
at once, the next a second later at the earliest. While acts continue, the pauses double up to ten seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import msgspec

from testbed.errors import TestbedError, printable

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 10.0
_MOST_CHARS = 200  # of an act's description
_MOST_KEYS = 1000  # nodes and kinds between two reports
_SHOWN = 3
FILE = "suspicious-acts.jsonl"  # in the work folder of an agent
_MOST_FILE_BYTES = 1 << 20
SOMEBODY = "somebody"  # an unidentified node, as several clients may write to that topic

_log = logging.getLogger(__name__)


class ActKind(StrEnum):
    """Kind of a suspicious act; a later version may have more of them."""

    BAD_MESSAGE = "bad-message"
    FLOOD = "flood"
    FOREIGN_GUEST = "foreign-guest"
    FALSE_REPORT = "false-report"
    NAMESAKE = "namesake"
    REFUSED_COMMAND = "refused-command"
    DENIED_PUBLISH = "denied-publish"
    FOREIGN_SUBSCRIPTION = "foreign-subscription"
    REFUSED_CONNECTION = "refused-connection"
    REFUSED_IMAGE = "refused-image"


MEANINGS = {
    ActKind.BAD_MESSAGE: "a message that is no valid record of its kind",
    ActKind.FLOOD: "more messages than a node has reason to send; they are dropped",
    ActKind.FOREIGN_GUEST: "a report about a guest that the node never had",
    ActKind.FALSE_REPORT: "a report, reply or result that cannot be true",
    ActKind.NAMESAKE: "two agents of one name",
    ActKind.REFUSED_COMMAND: "a command that an agent did not obey: without the live lease, or malformed",
    ActKind.DENIED_PUBLISH: "a message on a topic that its sender may not write to",
    ActKind.FOREIGN_SUBSCRIPTION: "a subscription to topics that its client may not read",
    ActKind.REFUSED_CONNECTION: "a connection that the broker, or the image server of an agent, did not let in",
    ActKind.REFUSED_IMAGE: "a request for a saved guest without a ticket for it",
}
"""The meaning of each kind, as a text for people."""


@dataclass(frozen=True, slots=True)
class Act:
    """`count` acts of one kind by a node; `what` describes the last, at Unix time `unix_s`."""

    node: str
    kind: ActKind
    what: str
    unix_s: float
    count: int = 1

    def __str__(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"{self.node}: {self.kind}{times}: {self.what}"


def told(acts: Sequence[Act]) -> str:
    """Return one line for people with the nodes and the kinds of acts, the most frequent first."""
    most = sorted(acts, key=lambda act: -act.count)
    more = f"; and {len(most) - _SHOWN} more" if len(most) > _SHOWN else ""
    return "suspicious: " + "; ".join(map(str, most[:_SHOWN])) + more


def plain(acts: Iterable[Act]) -> list[dict[str, object]]:
    """Return acts as plain data for the journal."""
    return [
        {"node": act.node, "kind": act.kind.value, "what": act.what, "unix_s": round(act.unix_s, 3), "count": act.count}
        for act in acts
    ]


def warn(acts: Sequence[Act]) -> None:
    """Log acts as a warning."""
    _log.warning("%s", told(acts))


class ActLog:
    """Collects acts and passes them to `report`, at once or after a pause, which doubles while acts continue.

    Without a running loop, acts that are held back wait for the next act or for `flush`.
    """

    def __init__(
        self,
        report: Callable[[Sequence[Act]], None] = warn,
        *,
        now_s: Callable[[], float] = time.monotonic,
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        self._report = report
        self._now_s = now_s
        self._unix_s = unix_s
        self._held: dict[tuple[str, ActKind], Act] = {}
        self._next_s: float | None = None  # no report before this time; None: no report was made yet
        self._pause_s = FIRST_PAUSE_S
        self._timer: asyncio.TimerHandle | None = None
        self.counts: dict[tuple[str, ActKind], int] = {}  # of all acts so far

    def note(self, node: str, kind: ActKind, what: object) -> None:
        """Record one act."""
        key = node, kind
        if key not in self.counts and len(self.counts) >= _MOST_KEYS:
            key = SOMEBODY, kind
        text = printable(str(what), _MOST_CHARS)
        count = self._held[key].count + 1 if key in self._held else 1
        self._held[key] = Act(*key, text, self._unix_s(), count)
        self.counts[key] = self.counts.get(key, 0) + 1
        wait_s = 0.0 if self._next_s is None else self._next_s - self._now_s()
        if wait_s <= 0:
            self._pause_s = FIRST_PAUSE_S  # there was no act during a whole pause
            self.flush()
        elif self._timer is None:
            with contextlib.suppress(RuntimeError):  # no loop runs
                self._timer = asyncio.get_running_loop().call_later(wait_s, self.flush)

    def flush(self) -> None:
        """Report the acts that are held back."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        acts, self._held = list(self._held.values()), {}
        if acts:
            self._next_s = self._now_s() + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
            self._report(acts)


class ActFile:
    """A rotated file of acts, one JSON object per line, which keeps at least the newest MiB and at most two."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._older = path.with_name(path.name + ".1")

    def append(self, acts: Sequence[Act]) -> None:
        """Append acts; if the file cannot be written, the acts are lost, which is logged."""
        try:
            if self.path.exists() and self.path.stat().st_size > _MOST_FILE_BYTES:
                self.path.replace(self._older)
            with self.path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(entry) + "\n" for entry in plain(acts))
        except OSError as error:
            _log.warning("%s: suspicious acts are not kept: %s", self.path, error.strerror)

    def read(self, since_unix_s: float = 0.0) -> list[Act]:
        """Return the acts from a Unix time on, oldest first; unreadable lines are skipped."""
        found: list[Act] = []
        for path in (self._older, self.path):
            with contextlib.suppress(OSError):
                found += acts_in(path.read_bytes().split(b"\n"))
        return [act for act in found if act.unix_s >= since_unix_s]


def acts_in(lines: Iterable[bytes]) -> list[Act]:
    """Return the acts of lines with one JSON object each; invalid lines are skipped."""
    found = []
    for line in lines:
        with contextlib.suppress(msgspec.MsgspecError, UnicodeError, RecursionError):
            found.append(msgspec.json.decode(line, type=Act))
    return found


def summed(acts: Iterable[Act]) -> list[Act]:
    """Return one act per node and kind, in the order of time: the last act, with the sum of the counts."""
    last: dict[tuple[str, ActKind], Act] = {}
    for act in acts:
        key = act.node, act.kind
        before = last.get(key)
        if before is None:
            last[key] = act
        else:
            newest = act if act.unix_s >= before.unix_s else before
            last[key] = replace(newest, count=act.count + before.count)
    return sorted(last.values(), key=lambda act: act.unix_s)


class SuspiciousError(TestbedError):
    """A message was not accepted; `kind` is the reason."""

    def __init__(self, kind: ActKind, what: str) -> None:
        self.kind = kind
        self.what = what
        super().__init__(what)
