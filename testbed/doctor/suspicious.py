"""What agents, the broker and runs noticed that no honest node does."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from testbed.doctor.finding import Check, Finding
from testbed.errors import UserError
from testbed.run.events import Suspicious
from testbed.run.journal import BadEntryError, decode
from testbed.suspicious_acts import FILE, MEANINGS, Act, ActFile, acts_in, summed

SINCE_S = 7 * 24 * 3600.0
_MOST_RUNS = 10  # the newest
_JOURNAL = ("journalctl", "--unit", "mosquitto", "--output", "cat", "--no-pager", "--since", "7 days ago")
_JOURNAL_WITHIN_S = 60.0
_MEND = "find out who did it; a node is taken out of the lab by its certificate: docs/security.md"


def agents() -> Iterator[Finding]:
    """Tell what agents of this user on this machine refused."""
    from node_agent.claims import claims  # noqa: PLC0415  # its drivers are heavy

    since_unix_s = time.time() - SINCE_S
    found = [(claim.name, ActFile(Path(claim.state_dir) / FILE).read(since_unix_s)) for _, claim in claims()]
    there = [finding for name, acts in found for finding in _findings(f"agent {name}", acts)]
    yield from there or [Finding("suspicious acts at agents", "ok", "none")]


def checks_of(lab: str, log: Path | None, runs: Path) -> list[tuple[str, Check]]:
    """Return the checks of a lab's broker, by its log or the journal of its unit, and of its runs in a folder."""
    return [("broker's log", lambda: broker(lab, log)), ("runs", lambda: noticed_in(lab, runs))]


def broker(lab: str, log: Path | None) -> Iterator[Finding]:
    """Tell what the broker's rules denied; raises `UserError` for a log that cannot be read."""
    from testbed.secure.broker_log import acts_of  # noqa: PLC0415  # an extra

    lines = _lines_of(log) if log is not None else _journal()
    if lines is None:
        yield Finding(
            "suspicious acts at the broker", "note", "its log is not on this machine",
            "testbed doctor --lab LAB --broker-log FILE, where the broker runs",
        )  # fmt: skip
        return
    acts = list(acts_of(lines, lab, time.time() - SINCE_S))
    yield from _findings("the broker", acts) or [Finding("suspicious acts at the broker", "ok", "none")]


def noticed_in(lab: str, runs: Path) -> Iterator[Finding]:
    """Tell what the newest runs of a lab noticed."""
    mine = [path for path in _newest(runs) if _lab_of(path) == lab]
    found = [(path.name, _noticed(path)) for path in mine]
    there = [finding for name, acts in found for finding in _findings(f"run {name}", acts)]
    yield from there or [Finding("suspicious acts in runs", "ok", f"none in {len(mine)} runs of {lab} in {runs}")]


def _findings(where: str, acts: Iterable[Act]) -> list[Finding]:
    return [
        Finding(
            f"suspicious acts: {where}", "warning",
            f"{act} ({MEANINGS[act.kind]}); last at {datetime.fromtimestamp(act.unix_s, UTC):%Y-%m-%d %H:%M:%S} UTC",
            _MEND, {"node": act.node, "kind": act.kind.value, "count": act.count, "last_unix_s": act.unix_s},
        )
        for act in summed(acts)
    ]  # fmt: skip


def _lines_of(log: Path) -> Iterable[str]:
    try:
        return log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise UserError(f"{log}: cannot read the broker's log: {error.strerror}") from None


def _journal(which: Callable[[str], str | None] = shutil.which) -> Iterable[str] | None:
    if which(_JOURNAL[0]) is None:
        return None
    try:
        told = subprocess.run(  # noqa: S603  # fixed words
            _JOURNAL, capture_output=True, text=True, errors="replace", timeout=_JOURNAL_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return told.stdout.splitlines() if told.returncode == 0 and told.stdout.strip() else None


def _newest(runs: Path) -> list[Path]:
    found = sorted(runs.glob("*/events.jsonl"), key=lambda path: path.stat().st_mtime)
    return [path.parent for path in found[-_MOST_RUNS:]]


def _lab_of(run: Path) -> str:
    try:
        return str(json.loads((run / "manifest.json").read_bytes())["scenario"]["lab"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _noticed(run: Path) -> list[Act]:
    found: list[Act] = []
    with (run / "events.jsonl").open("rb") as journal:
        for line in journal:
            if b'"suspicious"' in line:
                found += _acts_of_entry(line)
    return found


def _acts_of_entry(line: bytes) -> list[Act]:
    with contextlib.suppress(BadEntryError):
        event = decode(line)
        if isinstance(event, Suspicious):
            return acts_in(map(msgspec.json.encode, event.acts))
    return []
