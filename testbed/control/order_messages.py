"""Messages between the operator's commands and the controller: one order and one answer, each a line of JSON."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

OrderName: TypeAlias = Literal["pause", "continue", "stop", "close", "drain", "return"]
MOST_WAIT_S: Final = 7 * 86400.0


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An order; `node` names its node, `wait_s` is the timeout for its effect."""

    order: OrderName
    node: Annotated[str, msgspec.Meta(max_length=255)] | None = None
    wait_s: Annotated[float, msgspec.Meta(ge=0.0, le=MOST_WAIT_S)] = 600.0


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an order, described for people in `text`.

    `done`: the effect is in place; `changed`: the order was not in force before; `mistaken`: the order is invalid.
    `state` is `running`, `paused`, `resuming` or `stopping`. `jobs` has the ids of the jobs in the text.
    """

    done: bool
    text: str
    state: str
    changed: bool = False
    mistaken: bool = False
    jobs: tuple[int, ...] = ()
