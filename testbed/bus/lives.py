"""Generation of a task's life, and fence of a guest, as values in messages. See docs/resume.md."""

from __future__ import annotations

from typing import Annotated

import msgspec

from testbed.bus.numbers import Count
from testbed.bus.records import Value

Generation = Count
"""The number of a task's life: each start, restore and live migration has a higher number than those before.

A command carries the current generation of its task. Agents refuse a command whose generation is lower than the highest
that they have received for that task, and create a guest only of a higher one. 0 means that none is given, as by
earlier controllers; it is not checked.
"""


class Fence(Value, frozen=True):
    """The moment of a node's own monotonic clock at which the node destroys a guest.

    `clock` identifies that clock (see `NodeStatus`): the moment has no meaning for any other clock.
    """

    clock: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    until_ns: Count
