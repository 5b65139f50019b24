"""Conversion of decisions to and from journal entries, exact to the last bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from testbed.run import events
from testbed.scheduling.policies.view import ClusterView, Decision, Event

Floats: TypeAlias = np.ndarray[tuple[int], np.dtype[np.float64]]

# the columns of a view without missing values
_TYPES: Final = {
    "node_available": np.bool_, "job_id": np.int64, "submit_time_s": np.float64, "tasks": np.int64,
    "cpu_need_frac": np.float64, "mem_req_frac": np.float64, "virtual_time_s": np.float64, "state": np.int8,
    "task_node": np.int64,
}  # fmt: skip


def _given(values: Floats | None) -> tuple[float, ...]:
    """Return an optional column for the journal, empty if the view does not have it."""
    return () if values is None else tuple(values.tolist())


def _column(values: tuple[float, ...]) -> Floats | None:
    """Return an optional column of a journalled view, None if it is empty."""
    return np.array(values, dtype=np.float64) if values else None


def _plain(values: Floats) -> tuple[float | None, ...]:
    return tuple([None if math.isnan(value) else value for value in values.tolist()])


def _floats(values: Sequence[float | None]) -> Floats:
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def decision_event(
    times: tuple[float, float], decide_s: float, policy: str, view: ClusterView, event: Event, decision: Decision
) -> events.Decision:
    """Return a decision for the journal; floats keep every bit, NaN becomes None. `times` are its `t_s`, `trace_s`."""
    columns: dict[str, Any] = {name: tuple(getattr(view, name).tolist()) for name in _TYPES}
    return events.Decision(
        *times,
        decide_s=decide_s,
        policy=policy,
        view=events.View(
            time_s=view.time_s,
            **columns,
            start_time_s=_plain(view.start_time_s),
            estimate_s=_plain(view.estimate_s),
            urgent=tuple(view.urgent.tolist()) if view.urgent.any() else (),
            weight=_given(view.weight),
            least_yield_frac=_given(view.least_yield_frac),
            move_cost_s=_given(view.move_cost_s),
            image_node=() if view.image_node is None else tuple(view.image_node.tolist()),
        ),
        event=events.Trigger(
            completed=event.completed, submitted=event.submitted, periodic=event.periodic, changed=event.changed
        ),
        decision=choice(decision),
    )


def choice(decision: Decision) -> events.Choice:
    """Return a policy's decision for the journal."""
    return events.Choice(task_node=tuple(decision.task_node.tolist()), yield_frac=tuple(decision.yield_frac.tolist()))


def read_view(view: events.View) -> ClusterView:
    """Rebuild the view of a journalled decision."""
    columns: dict[str, Any] = {name: np.array(getattr(view, name), dtype=kind) for name, kind in _TYPES.items()}
    return ClusterView(
        time_s=view.time_s, **columns, start_time_s=_floats(view.start_time_s), estimate_s=_floats(view.estimate_s),
        urgent=np.array(view.urgent or (False,) * len(view.job_id), dtype=np.bool_),
        weight=_column(view.weight), least_yield_frac=_column(view.least_yield_frac),
        move_cost_s=_column(view.move_cost_s),
        image_node=np.array(view.image_node, dtype=np.int64) if view.image_node else None,
    )  # fmt: skip


def read_event(event: events.Trigger) -> Event:
    """Rebuild the event of a journalled decision."""
    return Event(event.completed, event.submitted, event.periodic, event.changed)


def read_choice(choice: events.Choice) -> Decision:
    """Rebuild a journalled decision."""
    return Decision(np.array(choice.task_node, dtype=np.int64), np.array(choice.yield_frac, dtype=np.float64))


def same_bits(decision: Decision, recorded: events.Choice) -> bool:
    """Whether a decision equals a journalled one in every bit."""
    return (
        tuple(decision.task_node.tolist()) == recorded.task_node
        and decision.yield_frac.tobytes() == _floats(recorded.yield_frac).tobytes()
    )
