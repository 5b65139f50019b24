"""The entries of orders that the operator gives to a running controller."""

from __future__ import annotations

from typing import Annotated

from testbed.run.entry import Entry, about


class Order(Entry, frozen=True, kw_only=True, tag="order"):
    """The operator gave an order to the running controller. Not before version 4.

    From `pause` and `stop` on, trace time stands still, and running jobs are saved.
    """

    order: Annotated[str, about("`pause`, `continue`, `stop`, `drain` (a node) or `return` (a node)")]
    node: Annotated[str | None, about("name of the node that is drained or returned; null for other orders")] = None
    by: Annotated[str, about("who gave it: user and process, as the kernel of the controller's machine reports them")]


class ClockStarted(Entry, frozen=True, kw_only=True, tag="clock-started"):
    """Trace time goes on after a pause: jobs that were saved for it run again. Not before version 4."""

    stood_still_s: Annotated[float, about("time for which it stood still")]
