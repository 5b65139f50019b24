"""Orders of the operator as text, for every view of a run."""

from __future__ import annotations

from testbed.run import events

_DONE = {"pause": "paused", "continue": "continued", "stop": "stopped", "drain": "drained", "return": "returned"}


def order_text(order: str, node: str | None) -> str:
    """Return what the operator did, such as `the operator drained node-a`."""
    return f"the operator {_DONE.get(order, order)} {'the run' if node is None else node}"


def text_of_order(event: events.Order | events.ClockStarted) -> str:
    """Return an entry of the journal about orders as text."""
    if isinstance(event, events.Order):
        return order_text(event.order, event.node)
    return f"trace time goes on, after it stood still for {event.stood_still_s:.1f} s"
