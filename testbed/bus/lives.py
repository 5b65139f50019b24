"""Values in messages about the lives of a task: their generations, and the fence of a guest. See docs/resume.md."""

from __future__ import annotations

from typing import Annotated

import msgspec

from testbed.bus.numbers import Count
from testbed.bus.records import Value

Generation = Count
"""The number of a life of a task: each start, restore and live migration has a higher one than those before.

A command carries the present generation of its task. Agents refuse a command of an older generation than they have
received for that task, and create a guest only of a newer one. 0: not given (earlier controllers), and not checked.
"""


class Fence(Value, frozen=True):
    """A moment of a node's own monotonic clock, until which a guest may run; the node destroys the guest then.

    `clock` identifies that clock (see `NodeStatus`): the moment means nothing to any other clock.
    """

    clock: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    until_ns: Count
