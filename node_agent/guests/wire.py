r"""The protocol between an agent and the agent inside a virtual machine: frames over a virtio-serial port or a console.

The stream survives save, restore and migration of the machine, but its host end does not: bytes that QEMU had read and
the agent had not are lost, and a frame may be cut in the middle. So every frame has a checksum, important frames are
sent again after each `attach`, and orders may be repeated. On Xen's console the kernel prints among the frames.

A frame is one line of at most `MAX_FRAME_BYTES` bytes with its ``\n``::

    G1 <crc32 of the body: 8 hex digits> <body>

The body is a kind, then `name=value` fields, separated by single spaces. In values every byte but letters, digits and
``_.-~/:,`` is written `%XX`. A repeated name makes its values a list in that order. Readers skip anything but a whole
frame (an incomplete line, a wrong checksum) and fields that they do not know.

Orders, host to guest; each carries `id`, a positive integer that the host never uses twice in the life of a guest. An
order with the id of an executed one is answered again and not executed again. Only the highest id is remembered, so the
host sends an order after the one before it was answered::

    attach  id, after                 a host listens from now on: answered `attached`; then all retained frames with
                                      seq > after are sent, and new frames follow
    task    id, <field>=<value>...    what the programs read as /run/task, one `field=value` line each
    run     id, arg...                start a process (an absolute path first); answered with its `pid`
    rank    id, rank, ranks, state, arg...         as `run`, for a rank of an MPI job, whose process manager is the host
    pmi     id, number, state, text   the answer to line `number` of that rank, or no text where none is expected
    go      id                        the program may work, at once or when it has sent `ready`
    kill    id, signal                signal every process that `run` started, and their children

Answers carry `id`, too: `ok` (`attached` for attach: boot, seq), or `refused` with `error`. `refused` has `last`, the
highest id that was executed, when the order's is lower: the clock of its new node may be behind that of the last one.

Frames that the guest sends by itself are retained and numbered by `seq` (from 1), for later attaches::

    hello     seq, boot, v, memory_mib, uptime_s   the first frame; `boot` is a random name of this life of the guest
    out       seq, pid, text          one line that a process of `run` printed (at most the last 64 KiB are retained)
    exit      seq, pid, status        a process of `run` ended; status as of a shell: 128 + signal when killed
    ready     seq, ballast_mib, touch_s            the program has its memory
    done      seq, units, checksum, messages, steps, longest_s, compute_s, comm_s
    error     seq, message            the program cannot continue
    pmi       seq, number, state, line             a line of the rank to its process manager; the next is read when it
                                      is answered, and it is retained until then. `state` is the last that the host sent

A new host skips frames that arrive before the answer to its `attach`. They were sent to an earlier host, and their
numbers could hide frames that the new host has not received. After the first `attach` no hang-up stops the guest.

The guest sends two more kinds of frame from the first `attach` on, and does not retain them::

    beat      units, mono_ns, steps, longest_s, compute_s, comm_s, waits_s
                                      every 0.5 s: work units done so far, CLOCK_MONOTONIC of the guest, iterations
                                      done, the longest one since the last report, seconds that all of them
                                      spent computing and communicating, and seconds that the rank has waited for
                                      messages of each rank since it began, in the order of ranks, with commas
    progress  (the same)              once after each `attach` and each `go`: the first time that units have grown since

`steps` to `comm_s` are missing before the first iteration is done, and in guests of earlier versions. `waits_s` is
missing before MPI has started, and in guests without the layer that counts waits. The guest's clock is stopped while
the guest is held or saved, so that time is in none of these numbers.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote_from_bytes, unquote_to_bytes

from testbed.bus.limits import MOST_AMOUNT, MOST_COUNT
from testbed.errors import TestbedError, shown

VERSION = 1
MAX_FRAME_BYTES = 16384
BEAT_EVERY_S = 0.5
_MAGIC = b"G%d " % VERSION
_SAFE = "/:,"
_SHOWN_CHARS = 80
_KIND = re.compile(r"[a-z]+")
_NAME = re.compile(r"[a-z_]+")


class WireError(TestbedError):
    """A frame that cannot be written, or a message without a field that its reader needs."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message; `fields` maps names to their values, in order."""

    kind: str
    fields: dict[str, tuple[str, ...]]

    def text(self, name: str) -> str:
        """Return the value of a field that comes once; raises `WireError`."""
        values = self.fields.get(name, ())
        if len(values) != 1:
            raise WireError(f"{self.kind}: {name} comes {len(values)} times; expected once")
        return values[0]

    def count(self, name: str) -> int:
        """Return an integer from 0 up to `MOST_COUNT`; raises `WireError`."""
        text = self.text(name)
        if not (text.isascii() and text.isdigit()) or len(text) > 20 or int(text) > MOST_COUNT:
            raise WireError(f"{self.kind}: {name} = {shown(text, _SHOWN_CHARS)}: expected a count below 2**63")
        return int(text)

    def number(self, name: str) -> float:
        """Return a number of at most `MOST_AMOUNT`, of either sign; raises `WireError`."""
        text = self.text(name)
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not -MOST_AMOUNT <= value <= MOST_AMOUNT:
            raise WireError(f"{self.kind}: {name} = {shown(text, _SHOWN_CHARS)}: expected a number within 1e15")
        return value


def encode(kind: str, fields: Iterable[tuple[str, object]] = ()) -> bytes:
    """Return the frame of a message; raises `WireError` if it would be no valid one."""
    if not _KIND.fullmatch(kind):
        raise WireError(f"kind {kind!r}: expected lower-case letters")
    parts = [kind]
    for name, value in fields:
        if not _NAME.fullmatch(name):
            raise WireError(f"{kind}: field {name!r}: expected lower-case letters and _")
        parts.append(f"{name}={quote_from_bytes(str(value).encode(), safe=_SAFE)}")
    body = " ".join(parts).encode("ascii")
    frame = b"%b%08x %b\n" % (_MAGIC, zlib.crc32(body), body)
    if len(frame) > MAX_FRAME_BYTES:
        raise WireError(f"{kind}: a frame of {len(frame)} bytes; expected at most {MAX_FRAME_BYTES}")
    return frame


def is_frame(line: str) -> bool:
    """Whether a line looks like a frame, whole or not; such a line of a console is not shown."""
    return line.startswith(_MAGIC.decode())


def repeated(name: str, values: Sequence[object]) -> list[tuple[str, object]]:
    """Return the fields of a list."""
    return [(name, value) for value in values]


def _decode(line: bytes) -> Frame | None:
    if not line.startswith(_MAGIC) or len(line) >= MAX_FRAME_BYTES:
        return None
    checksum, _, body = line[len(_MAGIC) :].partition(b" ")
    if checksum != b"%08x" % zlib.crc32(body):
        return None
    try:
        kind, *parts = body.decode("ascii").split(" ")
    except UnicodeDecodeError:
        return None
    fields: dict[str, tuple[str, ...]] = {}
    for part in parts:
        name, equals, value = part.partition("=")
        if not equals:
            return None
        fields[name] = (*fields.get(name, ()), unquote_to_bytes(value).decode(errors="replace"))
    return Frame(kind, fields)


class Reader:
    """Turns a byte stream into frames; `skipped` counts the rest. Memory stays bounded for any input.

    `overhear` gets each line that is no frame: damaged ones, and kernel output on a console.
    """

    def __init__(self, overhear: Callable[[bytes], None] = lambda _line: None) -> None:
        self.skipped = 0
        self._overhear = overhear
        self._rest = b""

    def feed(self, data: bytes) -> list[Frame]:
        """Take the next bytes; return the frames that they complete."""
        *lines, rest = (self._rest + data).split(b"\n")
        frames = []
        for line in lines:
            # text before the last magic may be the start of a frame that was cut
            frame = _decode(line) or _decode(line[max(line.rfind(_MAGIC), 0) :])
            if frame is None:
                self.skipped += 1
                self._overhear(line)
            else:
                frames.append(frame)
        if len(rest) > MAX_FRAME_BYTES:
            self.skipped += 1
            rest = rest[-MAX_FRAME_BYTES:]
        self._rest = rest
        return frames
