"""Typed details of guests' events: a union with one type per event, tagged by the event's name.

Agents of earlier versions may leave fields out; fields of later versions are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

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
    """A guest ended successfully; `verified` if its checksum is right, else `unverified` may have the reason."""

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
    """A guest ended successfully, and its result is still being checked."""


class Failed(Detail, frozen=True, kw_only=True, tag="failed"):
    """A guest ended with an error or a wrong result; an event with an unknown code is valid, too (`known_code`)."""

    reason: str = "it ended without a word"
    code: Any = None


class Drift(Detail, frozen=True, kw_only=True, tag="drift"):
    """The cap in force (or the share, by `of`) differed from the wanted one; both in cores, -1 for none."""

    wanted: Found | None = None
    found: Found | None = None
    of: Literal["cap", "share"] = "cap"


class Healed(Detail, frozen=True, kw_only=True, tag="healed"):
    """A guest sends network frames again after `silent_s` seconds of silence."""

    silent_s: Seconds | None = None
    attachments: Count = 0


GuestDetail: TypeAlias = Progress | Done | Ended | Failed | Drift | Healed
EVENTS: Final = frozenset(str(kind.__struct_config__.tag) for kind in get_args(GuestDetail))


def detail_of(event: str, told: Mapping[str, object]) -> GuestDetail | None:
    """Return the typed detail of an event, None for an event of another kind; raises `BadRecordError`."""
    if event not in EVENTS:
        return None
    return convert({**told, "event": event}, GuestDetail)  # type: ignore[arg-type]  # a union


def known_detail(event: str, told: Mapping[str, object]) -> GuestDetail | None:
    """Return the typed detail of an event in a journal, with default values if its fields are invalid.

    Returns None for an event of another kind.
    """
    try:
        return detail_of(event, told)
    except BadRecordError:
        return detail_of(event, {})


class GuestReport(msgspec.Struct, frozen=True, kw_only=True):
    """A guest's event in the controller, whose `detail` was checked and typed once, on reception.

    `told` is the detail as the agent sent it, for the journal. `detail` is None for kinds of events without a type.
    """

    node: str
    guest: str
    event: str
    mono_ns: int
    detail: GuestDetail | None
    told: dict[str, object]


def report_of(event: GuestEvent) -> GuestReport:
    """Return an event with its typed detail; raises `BadRecordError` for an invalid detail."""
    detail = detail_of(event.event, event.detail)
    return GuestReport(
        node=event.node, guest=event.guest, event=event.event, mono_ns=event.mono_ns, detail=detail, told=event.detail
    )
