"""What guests report with their events, typed: a union with one kind for each event, told apart by the event's name.

Agents of earlier versions may leave fields out; fields that only a later version knows are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeAlias, get_args

import msgspec

from testbed.bus.limits import MOST_NODE_CORES
from testbed.bus.messages import GuestEvent
from testbed.bus.numbers import Count, Seconds
from testbed.bus.records import BadRecordError, convert

Found: TypeAlias = Annotated[float, msgspec.Meta(ge=-1, le=MOST_NODE_CORES)]


class Detail(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Base of all details."""


class Progress(Detail, frozen=True, kw_only=True, tag="progress"):
    """The first progress since a start or a restore."""

    units: Count | None = None


class Done(Detail, frozen=True, kw_only=True, tag="done"):
    """A guest ended well; `verified` if its checksum was found right, else `unverified` may say why not."""

    units: Count | None = None
    checksum: str = ""
    messages: Count = 0
    steps: Count | None = None
    longest_s: Seconds | None = None
    compute_s: Seconds | None = None
    comm_s: Seconds | None = None
    verified: bool | None = None
    unverified: str = ""


class Ended(Done, frozen=True, kw_only=True, tag="ended"):
    """A guest ended well, and its result is still being checked."""


class Failed(Detail, frozen=True, kw_only=True, tag="failed"):
    """A guest ended with an error, or its result is wrong; its end counts, whatever its code is (`known_code`)."""

    reason: str = "it ended without a word"
    code: Any = None


class Drift(Detail, frozen=True, kw_only=True, tag="drift"):
    """Another cap was in force than the wanted one, in cores; -1 if there was none."""

    wanted: Found | None = None
    found: Found | None = None


class Healed(Detail, frozen=True, kw_only=True, tag="healed"):
    """A guest reports again after so many seconds of silence."""

    silent_s: Seconds | None = None
    attachments: Count = 0


GuestDetail: TypeAlias = Progress | Done | Ended | Failed | Drift | Healed
EVENTS: Final = frozenset(str(kind.__struct_config__.tag) for kind in get_args(GuestDetail))


def detail_of(event: str, told: Mapping[str, object]) -> GuestDetail | None:
    """Return the typed detail of an event, None of an event of another kind; raises `BadRecordError`."""
    if event not in EVENTS:
        return None
    return convert({**told, "event": event}, GuestDetail)  # type: ignore[arg-type]  # a union


def known_detail(event: str, told: Mapping[str, object]) -> GuestDetail | None:
    """Return the typed detail of an event in a journal, without its fields if they do not fit: they were not checked.

    None is that of an event of another kind.
    """
    try:
        return detail_of(event, told)
    except BadRecordError:
        return detail_of(event, {})


class GuestReport(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a guest as the controller takes it: `detail` was checked and typed once, where it came in.

    `told` is the detail as the agent sent it, for the journal. `detail` is None of a kind of event without one.
    """

    node: str
    guest: str
    event: str
    mono_ns: int
    detail: GuestDetail | None
    told: dict[str, object]


def report_of(event: GuestEvent) -> GuestReport:
    """Return an event with its typed detail; raises `BadRecordError` for a detail that does not fit."""
    detail = detail_of(event.event, event.detail)
    return GuestReport(
        node=event.node, guest=event.guest, event=event.event, mono_ns=event.mono_ns, detail=detail, told=event.detail
    )
