"""Standstills of a run and other orders of the operator as text, for every view of a run."""

from __future__ import annotations

from typing import TypeAlias

from testbed.run import events

Halting: TypeAlias = events.Order | events.ClockStarted | events.Resumed | events.Recovered
"""Orders of the operator, and the loss of a controller: what stops trace time or lets it go on."""

_DONE = {"pause": "paused", "continue": "continued", "stop": "stopped", "drain": "drained", "return": "returned"}


def order_text(order: str, node: str | None) -> str:
    """Return what the operator did, such as `the operator drained node-a`."""
    return f"the operator {_DONE.get(order, order)} {'the run' if node is None else node}"


def text_of_order(event: Halting) -> str:
    """Return an entry of the journal about orders, or about the loss of a controller, as text."""
    match event:
        case events.Order():
            return order_text(event.order, event.node)
        case events.ClockStarted():
            return f"trace time goes on, after it stood still for {event.stood_still_s:.1f} s"
        case events.Resumed():
            lost_s = event.t_s - event.since_s
            return f"{event.by} resumed the run, whose controller was lost {lost_s:.1f} s before"
        case events.Recovered():
            return (
                f"trace time goes on, after {event.blind_s:.1f} s without a controller; {len(event.adopted)} jobs went "
                f"on meanwhile, {len(event.carried_on)} operations are carried on"
            )
