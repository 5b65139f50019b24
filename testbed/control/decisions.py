"""Decisions in the journal: written whole, read back, and made again bit for bit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from testbed.policies.view import ClusterView, Decision, Event


def _plain(values: Sequence[float]) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values]


def _floats(values: object) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([math.nan if v is None else v for v in cast("list[float | None]", values)], dtype=np.float64)


def decision_entry(policy: str, view: ClusterView, event: Event, decision: Decision) -> dict[str, object]:
    """Return view, event and decision as JSON data; floats keep every bit, NaN becomes null."""
    return {
        "policy": policy,
        "view": {
            "time_s": view.time_s,
            "node_available": view.node_available.tolist(),
            "job_id": view.job_id.tolist(),
            "submit_time_s": view.submit_time_s.tolist(),
            "tasks": view.tasks.tolist(),
            "cpu_need_frac": view.cpu_need_frac.tolist(),
            "mem_req_frac": view.mem_req_frac.tolist(),
            "virtual_time_s": view.virtual_time_s.tolist(),
            "state": view.state.tolist(),
            "task_node": view.task_node.tolist(),
            "start_time_s": _plain(view.start_time_s.tolist()),
            "estimate_s": _plain(view.estimate_s.tolist()),
        },
        "event": {
            "completed": list(event.completed),
            "submitted": list(event.submitted),
            "periodic": event.periodic,
            "changed": event.changed,
        },
        "decision": {"task_node": decision.task_node.tolist(), "yield_frac": decision.yield_frac.tolist()},
    }


def read_view(data: Mapping[str, object]) -> ClusterView:
    """Rebuild the view of a journalled decision."""

    def ints(key: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array(cast("list[int]", data[key]), dtype=np.int64)

    return ClusterView(
        time_s=cast("float", data["time_s"]),
        node_available=np.array(cast("list[bool]", data["node_available"]), dtype=np.bool_),
        job_id=ints("job_id"),
        submit_time_s=_floats(data["submit_time_s"]),
        tasks=ints("tasks"),
        cpu_need_frac=_floats(data["cpu_need_frac"]),
        mem_req_frac=_floats(data["mem_req_frac"]),
        virtual_time_s=_floats(data["virtual_time_s"]),
        state=np.array(cast("list[int]", data["state"]), dtype=np.int8),
        task_node=ints("task_node"),
        start_time_s=_floats(data["start_time_s"]),
        estimate_s=_floats(data["estimate_s"]),
    )


def read_event(data: Mapping[str, object]) -> Event:
    """Rebuild the event of a journalled decision."""
    return Event(
        tuple(cast("list[int]", data["completed"])),
        tuple(cast("list[int]", data["submitted"])),
        bool(data["periodic"]),
        bool(data["changed"]),
    )


def same_bits(decision: Decision, recorded: Mapping[str, object]) -> bool:
    """Whether a decision equals a journalled one in every bit."""
    return (
        decision.task_node.tolist() == recorded["task_node"]
        and decision.yield_frac.tobytes() == _floats(recorded["yield_frac"]).tobytes()
    )
