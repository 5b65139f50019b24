"""What the operator's commands and the controller say to each other: one order, and one answer, each a line of JSON."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

OrderName: TypeAlias = Literal["pause", "continue", "stop", "drain", "return"]
MOST_BYTES: Final = 16 << 10
"""Of a line, with its break."""
MOST_WAIT_S: Final = 7 * 86400.0


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An order; `node` is the name of the node that it is about, `wait_s` how long its effect is waited for."""

    order: OrderName
    node: Annotated[str, msgspec.Meta(max_length=255)] | None = None
    wait_s: Annotated[float, msgspec.Meta(ge=0.0, le=MOST_WAIT_S)] = 600.0


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an order, in words for a person in `text`.

    `done` says that the effect is there, `changed` that it was not there before, `mistaken` that the order itself is
    wrong. `state` is `running`, `paused`, `resuming` or `stopping`. `jobs` are those that the text speaks of.
    """

    done: bool
    text: str
    state: str
    changed: bool = False
    mistaken: bool = False
    jobs: tuple[int, ...] = ()
