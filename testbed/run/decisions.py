"""Decisions in the journal: written whole, read back, and made again bit for bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from testbed.run import events
from testbed.scheduling.policies.view import ClusterView, Decision, Event

Floats: TypeAlias = np.ndarray[tuple[int], np.dtype[np.float64]]


def _plain(values: Floats) -> tuple[float | None, ...]:
    return tuple([None if math.isnan(value) else value for value in values.tolist()])


def _floats(values: Sequence[float | None]) -> Floats:
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def decision_event(
    times: tuple[float, float], decide_s: float, policy: str, view: ClusterView, event: Event, decision: Decision
) -> events.Decision:
    """Return a decision for the journal; floats keep every bit, NaN becomes None. `times` are its `t_s`, `trace_s`."""
    return events.Decision(
        *times,
        decide_s=decide_s,
        policy=policy,
        view=events.View(
            time_s=view.time_s,
            node_available=tuple(view.node_available.tolist()),
            job_id=tuple(view.job_id.tolist()),
            submit_time_s=tuple(view.submit_time_s.tolist()),
            tasks=tuple(view.tasks.tolist()),
            cpu_need_frac=tuple(view.cpu_need_frac.tolist()),
            mem_req_frac=tuple(view.mem_req_frac.tolist()),
            virtual_time_s=tuple(view.virtual_time_s.tolist()),
            state=tuple(view.state.tolist()),
            task_node=tuple(view.task_node.tolist()),
            start_time_s=_plain(view.start_time_s),
            estimate_s=_plain(view.estimate_s),
        ),
        event=events.Trigger(
            completed=event.completed, submitted=event.submitted, periodic=event.periodic, changed=event.changed
        ),
        decision=choice(decision),
    )


def choice(decision: Decision) -> events.Choice:
    """Return what a policy decided for the journal."""
    return events.Choice(task_node=tuple(decision.task_node.tolist()), yield_frac=tuple(decision.yield_frac.tolist()))


def read_view(view: events.View) -> ClusterView:
    """Rebuild the view of a journalled decision."""
    return ClusterView(
        time_s=view.time_s,
        node_available=np.array(view.node_available, dtype=np.bool_),
        job_id=np.array(view.job_id, dtype=np.int64),
        submit_time_s=_floats(view.submit_time_s),
        tasks=np.array(view.tasks, dtype=np.int64),
        cpu_need_frac=_floats(view.cpu_need_frac),
        mem_req_frac=_floats(view.mem_req_frac),
        virtual_time_s=_floats(view.virtual_time_s),
        state=np.array(view.state, dtype=np.int8),
        task_node=np.array(view.task_node, dtype=np.int64),
        start_time_s=_floats(view.start_time_s),
        estimate_s=_floats(view.estimate_s),
    )


def read_event(event: events.Trigger) -> Event:
    """Rebuild the event of a journalled decision."""
    return Event(event.completed, event.submitted, event.periodic, event.changed)


def same_bits(decision: Decision, recorded: events.Choice) -> bool:
    """Whether a decision equals a journalled one in every bit."""
    return (
        tuple(decision.task_node.tolist()) == recorded.task_node
        and decision.yield_frac.tobytes() == _floats(recorded.yield_frac).tobytes()
    )
