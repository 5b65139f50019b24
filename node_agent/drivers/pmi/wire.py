"""Lines of PMI version 1, from a rank to its process manager: `cmd=NAME` and `key=value` fields."""

from __future__ import annotations

import re
from dataclasses import dataclass

from node_agent.drivers.protocol import DriverError
from testbed.errors import shown

MOST_LINE_BYTES = 2048  # a value of 1024 and a key of 64 characters, plus the rest of the line
_SHOWN_CHARS = 80
_COMMAND = re.compile(r"cmd=(?P<name>[a-z_]{1,32})(?P<words>(?: [a-z_]{1,32}=[!-\[\]-~]{1,1100}){0,8}) *")


class PmiError(DriverError):
    """A rank sent a message that no rank of MPICH sends to its process manager."""


class ForeignPassError(PmiError):
    """The controller lets a rank pass a barrier that the rank is not in, or by keys that no other rank can have."""

    suspicious = True


@dataclass(frozen=True, slots=True)
class PmiCommand:
    """One command of a rank, with its fields by key."""

    name: str
    words: dict[str, str]

    def word(self, key: str) -> str:
        """Return the value of a field; raises `PmiError` if it is missing."""
        if key not in self.words:
            raise PmiError(f"MPI says cmd={self.name} without {key}=: expected it")
        return self.words[key]


def parse(line: bytes) -> PmiCommand:
    """Read a line without its end; raises `PmiError`. Of `abort` only the name is read, as free text follows."""
    text = line.decode("ascii", errors="replace")
    if text == "cmd=abort" or text.startswith("cmd=abort "):
        return PmiCommand("abort", {})
    found = _COMMAND.fullmatch(text) if len(line) < MOST_LINE_BYTES else None
    if found is None:
        raise PmiError(f"MPI says {shown(text, _SHOWN_CHARS)}: expected cmd=NAME and at most 8 words KEY=VALUE")
    pairs = [word.partition("=") for word in found["words"].split()]
    return PmiCommand(found["name"], {key: value for key, _, value in pairs})


class LineReader:
    """Cuts a byte stream into lines of less than `MOST_LINE_BYTES` bytes."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes; return the lines that they complete. Raises `PmiError` for a line that is too long."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        longest = max((self._rest, *lines), key=len)
        if len(longest) >= MOST_LINE_BYTES:
            raise PmiError(
                f"MPI says a line of {len(longest)} bytes or more, {shown(longest, _SHOWN_CHARS)}: expected less than "
                f"{MOST_LINE_BYTES}"
            )
        return lines
