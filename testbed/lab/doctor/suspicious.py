"""Checks for suspicious acts that agents, the broker and runs have recorded."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from testbed.bus.suspicious_acts import FILE, MEANINGS, Act, ActFile, acts_in, summed
from testbed.errors import UserError, printable
from testbed.host.agents import claims
from testbed.lab.doctor.finding import Check, Finding
from testbed.run.events import Suspicious
from testbed.run.journal import BadEntryError, decode
from testbed.run.parts import has_journal, journal_parts

SINCE_S = 7 * 24 * 3600.0
_MOST_RUNS = 10  # the newest
_JOURNAL = ("journalctl", "--unit", "mosquitto", "--output", "cat", "--all", "--no-pager", "--since", "7 days ago")
_JOURNAL_WITHIN_S = 60.0
_MOST_LINE_CHARS = 1 << 17  # a topic has 65,535 bytes at most
_BROKER = "suspicious acts at the broker"
_MEND = "find the sender; to exclude a node from the lab, revoke its certificate: docs/security.md"


def agents() -> Iterator[Finding]:
    """Report the acts that agents of this user on this machine have refused."""
    since_unix_s = time.time() - SINCE_S
    found = [(claim.name, ActFile(Path(claim.state_dir) / FILE).read(since_unix_s)) for _, claim in claims()]
    there = [finding for name, acts in found for finding in _findings(f"agent {name}", acts)]
    yield from there or [Finding("suspicious acts at agents", "ok", "none")]


def checks_of(lab: str, log: Path | None, runs: Path) -> list[tuple[str, Check]]:
    """Return the checks of a lab's broker, by its log file or its systemd journal, and of its runs in a folder."""
    return [("broker's log", lambda: broker(lab, log)), ("runs", lambda: noticed_in(lab, runs))]


def broker(lab: str, log: Path | None) -> Iterator[Finding]:
    """Report the acts that the broker's access rules denied; raises `UserError` for a log that cannot be read."""
    from testbed.lab.secure.broker_log import acts_of  # noqa: PLC0415  # an extra

    since_unix_s = time.time() - SINCE_S
    if log is not None:
        yield from _at_broker(summed(acts_of(_lines_of(log), lab, since_unix_s)))
        return
    with _journal() as journal:
        acts = summed(acts_of(journal.lines, lab, since_unix_s))
    if not journal.there:
        yield Finding(
            _BROKER, "note", "its log is not on this machine",
            "testbed doctor --lab LAB --broker-log FILE, where the broker runs",
        )  # fmt: skip
        return
    if journal.cut:
        yield Finding(
            _BROKER, "warning",
            f"its log of the last week is too large to be read within {_JOURNAL_WITHIN_S:g} s: somebody may flood it; "
            f"{journal.count} lines were read",
            "journalctl --unit mosquitto --since '1 hour ago' --output cat --all > FILE; testbed doctor --lab LAB "
            "--broker-log FILE",
        )  # fmt: skip
    yield from _at_broker(acts, sure=not journal.cut)


def _at_broker(acts: Iterable[Act], *, sure: bool = True) -> list[Finding]:
    return _findings("the broker", acts) or ([Finding(_BROKER, "ok", "none")] if sure else [])


def noticed_in(lab: str, runs: Path) -> Iterator[Finding]:
    """Report the acts recorded by the newest runs of a lab."""
    mine = [path for path in _newest(runs) if _lab_of(path) == lab]
    found = [(path.name, _noticed(path)) for path in mine]
    there = [finding for name, acts in found for finding in _findings(f"run {name}", acts)]
    yield from there or [Finding("suspicious acts in runs", "ok", f"none in {len(mine)} runs of {lab} in {runs}")]


def _findings(where: str, acts: Iterable[Act]) -> list[Finding]:
    return [
        Finding(
            f"suspicious acts: {where}", "warning",
            f"{printable(str(act))} ({MEANINGS[act.kind]}); "
            f"last at {datetime.fromtimestamp(act.unix_s, UTC):%Y-%m-%d %H:%M:%S} UTC",
            _MEND, {"node": act.node, "kind": act.kind.value, "count": act.count, "last_unix_s": act.unix_s},
        )
        for act in summed(acts)
    ]  # fmt: skip


def _lines_of(log: Path) -> Iterator[str]:
    try:
        with log.open("rb") as file:
            yield from _split(file)
    except OSError as error:
        raise UserError(f"{log}: cannot read the broker's log: {error.strerror}") from None


def _split(source: io.BufferedIOBase) -> Iterator[str]:
    """Yield the lines of a log, split only at line feeds; a line longer than any of Mosquitto's is split into parts."""
    while line := source.readline(_MOST_LINE_CHARS):
        yield line.decode(errors="replace")


class _Journal:
    """The journal lines of the broker's unit as they arrive; `cut` is set if the timeout ended the reading."""

    def __init__(self, source: io.BufferedIOBase | None) -> None:
        self._source = source
        self.count = 0
        self.cut = False

    @property
    def there(self) -> bool:
        """Whether the journal had any line."""
        return self.count > 0 or self.cut

    @property
    def lines(self) -> Iterator[str]:
        """The lines; they can be iterated once."""
        if self._source is None:
            return
        for line in _split(self._source):
            self.count += bool(line.strip())
            yield line


@contextmanager
def _journal(
    command: Sequence[str] = _JOURNAL, within_s: float = _JOURNAL_WITHIN_S,
    which: Callable[[str], str | None] = shutil.which,
) -> Iterator[_Journal]:  # fmt: skip
    """Read the journal of the broker's unit during the block; the reader is killed at the timeout."""
    if which(command[0]) is None:
        yield _Journal(None)
        return
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:  # noqa: S603  # fixed
        journal = _Journal(child.stdout)  # type: ignore[arg-type]  # typed as any binary file

        def end() -> None:
            journal.cut = child.poll() is None
            child.kill()

        timer = threading.Timer(within_s, end)
        timer.start()
        try:
            yield journal
        finally:
            timer.cancel()
            with contextlib.suppress(OSError):
                child.kill()  # if the block ended early, the rest of the output is not needed


def _newest(runs: Path) -> list[Path]:
    return sorted(filter(has_journal, runs.glob("*")), key=_written_s)[-_MOST_RUNS:]


def _written_s(run: Path) -> float:
    try:
        return (run / "events.jsonl").stat().st_mtime
    except FileNotFoundError:  # the last entries are in a completed part
        return run.stat().st_mtime


def _lab_of(run: Path) -> str:
    try:
        return str(json.loads((run / "manifest.json").read_bytes())["scenario"]["lab"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _noticed(run: Path) -> list[Act]:
    found: list[Act] = []
    for journal in journal_parts(run / "events.jsonl").each():
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
