"""Values in the accounting text of batch systems: points in time, durations, sizes and counts.

Every pattern limits the number of digits, so that no long text becomes a number that is slow to compute with.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from testbed.errors import InputError, UserError, nearest, shown

# Texts of sacct and qacct for a missing value, in lower case.
_NOT_KNOWN = frozenset(
    ["", "-/-", "?", "unknown", "none", "n/a", "invalid", "undefined", "unlimited", "infinite", "partition_limit"]
)
_DIGITS = "[0-9]{1,18}"
_CLOCK = "(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})"
_FRACTION = r"(?:\.(?P<fraction>[0-9]{1,6}))?"
_FIRST_YEAR, _LAST_YEAR = 1971, 2999  # Grid Engine writes a missing time as the beginning of 1970
_MOMENTS = (
    re.compile(  # Slurm, Open Cluster Scheduler
        f"(?P<year>[0-9]{{4}})-(?P<month>[0-9]{{2}})-(?P<day>[0-9]{{2}})[T ]{_CLOCK}{_FRACTION}"
        "(?P<offset>Z|[+-][0-9]{2}:?[0-9]{2})?"
    ),
    re.compile(  # Univa Grid Engine
        f"(?P<month>[0-9]{{2}})/(?P<day>[0-9]{{2}})/(?P<year>[0-9]{{4}}) {_CLOCK}{_FRACTION}"
    ),
    re.compile(  # Sun Grid Engine, Son of Grid Engine: the form of ctime(3)
        f"[A-Z][a-z]{{2}} (?P<name>[A-Z][a-z]{{2}}) {{1,2}}(?P<day>[0-9]{{1,2}}) {_CLOCK} (?P<year>[0-9]{{4}})"
    ),
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_UNIX_TIME = re.compile(_DIGITS)
_DURATION = re.compile(
    r"(?:(?P<days>[0-9]{1,9})-)?(?:(?P<hours>[0-9]{1,9}):)?(?P<minutes>[0-9]{1,9}):(?P<seconds>[0-9]{1,9}(?:\.[0-9]{1,6})?)"
)
_SECONDS = re.compile(rf"({_DIGITS}(?:\.[0-9]{{1,9}})?)s?")
_COUNT = re.compile(rf"({_DIGITS}(?:\.[0-9]{{1,3}})?)([KM]?)")
_SIZE = re.compile(rf"({_DIGITS}(?:\.[0-9]{{1,9}})?)([KkMmGgTtPp]?)B?")
_BYTES = {"": 1} | {letter: 1024**power for power, letter in enumerate("KMGTP", start=1)}
_BYTES |= {letter: 1000**power for power, letter in enumerate("kmgtp", start=1)}  # small letters as in Grid Engine

Notes = Counter[str]  # how many records were left out or adjusted, by the text that ends the warning


class Cell(NamedTuple):
    """The text of a value; `where` is the file with its line, `field` the name of the column or key."""

    where: str
    field: str
    text: str

    @property
    def known(self) -> bool:
        """Whether the text is a value, and not one of the words for a missing value."""
        return self.text.casefold() not in _NOT_KNOWN

    def error(self, expected: str) -> InputError:
        """Return the error with the expected value."""
        return InputError(self.where, self.field, self.text, expected)


@dataclass(frozen=True, slots=True)
class Clock:
    """Conversion of local times to seconds: by the rules of `zone`, or without a zone as if all days had 24 hours."""

    zone: ZoneInfo | None = None

    def unix_time_s(self, cell: Cell, notes: Notes | None = None) -> float | None:
        """Return a point in time in seconds, None for a missing one.

        Of a local time that occurred twice in the zone the first one is returned, and counted in `notes`. Raises
        InputError for a text of another form, and for a time that did not occur in the zone.
        """
        if not cell.known:
            return None
        if _UNIX_TIME.fullmatch(cell.text):
            moment = _from_unix_time(cell)
        else:
            moment = self._aware(cell, _read_moment(cell), notes)
        return round(moment.timestamp(), 6) if moment.year >= _FIRST_YEAR else None

    def _aware(self, cell: Cell, moment: datetime, notes: Notes | None) -> datetime:
        if moment.tzinfo is not None or moment.year < _FIRST_YEAR:
            return moment
        if self.zone is None:
            return moment.replace(tzinfo=UTC)
        local = moment.replace(tzinfo=self.zone)
        if local.astimezone(UTC).astimezone(self.zone).replace(tzinfo=None) != moment:
            raise cell.error(f"a time that the clocks of {self.zone.key} showed; they were put forward past this one")
        if notes is not None and local.utcoffset() != local.replace(fold=1).utcoffset():
            notes["were submitted in an hour that the clocks showed twice, taken as the first"] += 1
        return local


def find_clock(timezone: str | None) -> Clock:
    """Return the clock of a time zone such as Europe/Berlin. Raises UserError for an unknown name."""
    if timezone is None:
        return Clock()
    try:
        return Clock(ZoneInfo(timezone))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        known = available_timezones()
        hint = nearest(timezone[:100], known) if known else "; this machine knows none: install tzdata"
        raise UserError(f"--timezone {shown(timezone)}: expected a time zone such as Europe/Berlin{hint}") from None


def read_duration_s(cell: Cell) -> float | None:
    """Return the seconds of `[[days-]hours:]minutes:seconds`, None if the value is missing."""
    if not cell.known:
        return None
    if not (match := _DURATION.fullmatch(cell.text)):
        raise cell.error("a duration such as 1-02:03:04, 02:03:04 or 03:04")
    days, hours = int(match["days"] or 0), int(match["hours"] or 0)
    return float((days * 24 + hours) * 3600 + int(match["minutes"]) * 60) + float(match["seconds"])


def read_seconds(cell: Cell) -> float | None:
    """Return a number of seconds, with or without the unit `s`; None if the value is missing."""
    if not cell.known:
        return None
    if not (match := _SECONDS.fullmatch(cell.text)):
        raise cell.error("a number of seconds such as 12 or 12.5s, of at most 18 digits")
    return float(match[1])


def read_count(cell: Cell) -> int | None:
    """Return a whole number; Slurm writes 2048 nodes as 2K. None if the value is missing."""
    if not cell.known:
        return None
    match = _COUNT.fullmatch(cell.text)
    if not match or ("." in match[1] and not match[2]):
        raise cell.error("a whole number such as 16 or 2K, of at most 18 digits")
    return round(float(match[1]) * _BYTES[match[2]]) if match[2] else int(match[1])


def read_size(cell: Cell, default_unit: str = "") -> float | None:
    """Return the bytes of a size such as `4000M`, None if it is missing or 0.

    Capital letters are powers of 1024, small ones of 1000. `default_unit` is the letter of a size without one.
    """
    if not cell.known or cell.text.endswith("?"):  # Slurm writes a size beyond all of its units with a question mark
        return None
    if not (match := _SIZE.fullmatch(cell.text)):
        raise cell.error("a size such as 4000M, 2.5G or 1024, of at most 18 digits")
    return float(match[1]) * _BYTES[match[2] or default_unit] or None


def _from_unix_time(cell: Cell) -> datetime:
    limit = datetime(_LAST_YEAR + 1, 1, 1, tzinfo=UTC).timestamp()
    if int(cell.text) >= limit:
        raise cell.error(f"a Unix time in seconds, of a year up to {_LAST_YEAR}")
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=int(cell.text))


def _read_moment(cell: Cell) -> datetime:
    match = next(filter(None, (form.fullmatch(cell.text) for form in _MOMENTS)), None)
    if match is None:
        raise cell.error("a time such as 2026-01-31T12:00:00, 01/31/2026 12:00:00 or Sat Jan 31 12:00:00 2026")
    part = match.groupdict()
    try:
        month = _MONTHS.index(part["name"]) + 1 if part.get("name") else int(part["month"])
        microsecond = int((part.get("fraction") or "").ljust(6, "0"))
        moment = datetime(  # noqa: DTZ001  # a local time; the caller knows the zone
            int(part["year"]), month, int(part["day"]), int(part["hour"]), int(part["minute"]), int(part["second"]),
            microsecond,
        )  # fmt: skip
        if part.get("offset"):
            moment = datetime.fromisoformat(f"{moment.isoformat()}{part['offset']}")
    except ValueError:
        raise cell.error("a time that exists, such as 2026-01-31T12:00:00") from None
    if moment.year > _LAST_YEAR:
        raise cell.error(f"a year up to {_LAST_YEAR}")
    return moment
