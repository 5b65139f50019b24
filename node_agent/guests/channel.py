r"""The control channel between an agent and the program of one guest: its messages and their framing.

Framing: both directions carry JSON objects in UTF-8, each on one line that ends in ``\n`` and has at most
`MAX_LINE_BYTES` bytes with it. No line depends on another, so a reader may drop a bad one and continue. Any reliable
byte stream will do: a UNIX socket for processes, a virtio-serial port for virtual machines. One channel serves one life
of one program; the program opens it and sends `hello` first. `kind` names the message, `v` (in `hello` and `task`) the
version of this protocol. Integers are from 0 below 2**63, other numbers within 1e15, as in messages about guests on the
bus; durations are seconds, `*_ns` CLOCK_MONOTONIC of the machine that the program runs on, `at` iterations done. A
reader ignores fields that it does not know; a missing or mistyped field, or a number out of these bounds, is an error
of that line, but for fields that may be missing.

From the program to the agent::

    hello        v, pid                         the first message
    joined       segments                       of a rank when MPI has started: its shared memory
    ready        ballast_mib, touch_s           memory filled (from the image: read and verified); waits for `release`
    released     at                             answers `release`
    progress     units, mono_ns, <steps>, waits_s   after the first iteration of this life, then at most every 0.5 s
    held         at                             answers `hold`: the first point where it can stop and be written
    saved        bytes, digest, run_on_s, write_s, sync_s     answers `save`; the program then ends with exit code 0
    save_failed  error                          answers `save`; the program is held still
    done         units, checksum, messages, <steps>     the work is done; the program then ends with exit code 0
    error        message                        the program cannot continue; it then ends with exit code 1

<steps> are `steps, longest_s, compute_s, comm_s`: iterations done, the longest one since the last report, and the
seconds of all iterations spent computing and communicating. All but `longest_s` count from the job's first iteration:
an image carries them from one life to the next. Time for which the program was held is in none of them. `steps` and
`longest_s` may be missing, as may all four in `progress`: programs of earlier versions do not send them. `waits_s` are
the seconds that a rank has waited for messages of each rank, since it began; it is missing where no waits are counted.

From the agent to the program::

    task         v, spec, image (a path or null)     answers `hello`; `spec` is a GuestSpec of the bus as JSON object
    hold                                        stop at the next point where no other member has to move
    release                                     continue
    save         at, path                       run on to iteration `at`, write to `path`, make it durable, end
    park                                        disconnect, and reconnect until an agent answers (held only)

`hold` may be sent again to a held program, or to a program that was written and waits for the other members of its job:
the program answers `held` again. A program whose channel closes ends at once, unless it got `park`: while no agent
answers, it may be written to disk with its memory and continue elsewhere. It then sends `hello`, and `ready` if it is
given a `task` again, since its memory is there. Only programs of this package can park, so only they get this message.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from testbed.bus.limits import MOST_AMOUNT, MOST_COUNT
from testbed.errors import TestbedError, shown

VERSION = 1
MAX_LINE_BYTES = 65536
_SHOWN_CHARS = 80

_BOUNDS_INT = (0, MOST_COUNT, "an int from 0 below 2**63")
_BOUNDS = (-MOST_AMOUNT, MOST_AMOUNT, "a number within 1e15")
_NUMBER = (int, float)
_TEXT_OR_NONE = (str, type(None))
_FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "hello": {"v": int, "pid": int},
    "joined": {"segments": list},
    "ready": {"ballast_mib": int, "touch_s": _NUMBER},
    "released": {"at": int},
    "progress": {"units": int, "mono_ns": int},
    "held": {"at": int},
    "saved": {"bytes": int, "digest": str, "run_on_s": _NUMBER, "write_s": _NUMBER, "sync_s": _NUMBER},
    "save_failed": {"error": str},
    "done": {"units": int, "checksum": str, "messages": int, "compute_s": _NUMBER, "comm_s": _NUMBER},
    "error": {"message": str},
    "task": {"v": int, "spec": dict, "image": _TEXT_OR_NONE},
    "hold": {},
    "release": {},
    "save": {"at": int, "path": str},
    "park": {},
}
_MAY_MISS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "progress": {"steps": int, "longest_s": _NUMBER, "compute_s": _NUMBER, "comm_s": _NUMBER, "waits_s": list},
    "done": {"steps": int, "longest_s": _NUMBER},
}


class ChannelError(TestbedError):
    """A line that is no message of this protocol."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message; `fields` holds what its kind demands, checked."""

    kind: str
    fields: dict[str, Any]


def encode(kind: str, **fields: object) -> bytes:
    """Return the line of one message; raises `ChannelError` if a reader would refuse it."""
    line = json.dumps({"kind": kind, **fields}, separators=(",", ":")).encode() + b"\n"
    decode(line)
    return line


def decode(line: bytes) -> Message:
    """Read one line, with or without its end; raises `ChannelError` with the reason for a bad one."""
    if len(line) > MAX_LINE_BYTES:
        raise ChannelError(f"a line of {len(line)} bytes; expected at most {MAX_LINE_BYTES}")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ChannelError(f"{line[:60]!r} is no JSON: {error}") from error
    kind = value.get("kind") if isinstance(value, dict) else None
    expected = _FIELDS.get(kind) if isinstance(kind, str) else None
    if expected is None:
        raise ChannelError(f"{line[:60]!r}: expected an object whose kind is one of {', '.join(_FIELDS)}")
    there = {name: types for name, types in _MAY_MISS.get(str(kind), {}).items() if name in value}
    expected = {**expected, **there}
    for name, types in expected.items():
        found = value.get(name)
        if not isinstance(found, types) or isinstance(found, bool):
            raise ChannelError(f"{kind}: {name} = {shown(found, _SHOWN_CHARS)}: expected {_type_names(types)}")
        least, most, bounds = _BOUNDS_INT if types is int else _BOUNDS
        if isinstance(found, int | float) and not least <= found <= most:
            raise ChannelError(f"{kind}: {name} = {shown(found, _SHOWN_CHARS)}: expected {bounds}")
    if expected.get("v") is int and value["v"] != VERSION:
        raise ChannelError(f"{kind}: version {value['v']}; this side speaks {VERSION}")
    return Message(str(kind), {name: value[name] for name in expected})


def _type_names(types: type | tuple[type, ...]) -> str:
    return " or ".join(kind.__name__ for kind in (types if isinstance(types, tuple) else (types,)))


class Decoder:
    """Turns a byte stream into messages; bad lines become `ChannelError` values between them.

    A line that grows beyond the bound is dropped to its end, so memory stays bounded for any input.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._dropping = False

    def feed(self, data: bytes) -> list[Message | ChannelError]:
        """Take the next bytes; return the messages and errors that they complete."""
        *lines, rest = (self._rest + data).split(b"\n")
        results: list[Message | ChannelError] = []
        for line in lines:
            if self._dropping:
                self._dropping = False
            else:
                try:
                    results.append(decode(line + b"\n"))
                except ChannelError as error:
                    results.append(error)
        if len(rest) >= MAX_LINE_BYTES:
            if not self._dropping:
                results.append(ChannelError(f"a line of more than {MAX_LINE_BYTES} bytes"))
            self._dropping, rest = True, b""
        self._rest = b"" if self._dropping else rest
        return results
