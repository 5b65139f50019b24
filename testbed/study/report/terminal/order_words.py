"""Texts for orders of the operator and standstills of a run, for all views of a run."""

from __future__ import annotations

from typing import TypeAlias

from testbed.run import events

Halting: TypeAlias = events.Order | events.ClockStarted | events.Resumed | events.Recovered
"""Events that stop or continue trace time: orders of the operator, and the loss of a controller."""

_DONE = {"pause": "paused", "continue": "continued", "stop": "stopped", "drain": "drained", "return": "returned"}


def order_text(order: str, node: str | None) -> str:
    """Return the text for an order, such as `the operator drained node-a`."""
    return f"the operator {_DONE.get(order, order)} {'the run' if node is None else node}"


def text_of_order(event: Halting) -> str:
    """Return the text for a journal entry on an order or on the loss of a controller."""
    match event:
        case events.Order():
            return order_text(event.order, event.node)
        case events.ClockStarted():
            return f"trace time continues after a standstill of {event.stood_still_s:.1f} s"
        case events.Resumed():
            lost_s = event.t_s - event.since_s
            return f"{event.by} resumed the run, whose controller was lost {lost_s:.1f} s before"
        case events.Recovered():
            return (
                f"trace time continues after {event.blind_s:.1f} s without a controller; {len(event.adopted)} jobs ran "
                f"in that time, {len(event.carried_on)} operations are continued"
            )
