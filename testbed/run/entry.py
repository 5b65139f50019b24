"""The base of all journal entries, and fields that several kinds of entries have."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta


def about(meaning: str, unit: str = "") -> Meta:
    """Describe a field; without `unit` the unit follows from the end of the field's name."""
    return Meta(description=meaning, extra={"unit": unit} if unit else None)


JobId: TypeAlias = Annotated[int, about("id of the job in the trace")]
Task: TypeAlias = Annotated[int, about("number of the task in its job, from 0")]
NodeIndex: TypeAlias = Annotated[int, about("number of the node")]
NodeName: TypeAlias = Annotated[str, about("name of the node")]
TaskNodes: TypeAlias = Annotated[tuple[int, ...], about("node of each task, by number")]
ActionNumber: TypeAlias = Annotated[int, about("number of the operation in this run")]
VerbName: TypeAlias = Annotated[str, about("`start`, `cap`, `save`, `transfer`, `restore` or `migrate`")]
Error: TypeAlias = Annotated[str, about("error message")]
LaterCode: TypeAlias = Annotated[str | None, about("reason, as a code; this version does not write it")]
ImageName: TypeAlias = Annotated[str, about("name of an image")]
Reason: TypeAlias = Annotated[str, about("reason, as a text")]


class Entry(msgspec.Struct, frozen=True, tag_field="kind", omit_defaults=True):
    """Base of all events."""

    t_s: Annotated[float, about("wall seconds since the run began, by the controller's monotonic clock")]
    trace_s: Annotated[float, about("trace time", "trace s")]
