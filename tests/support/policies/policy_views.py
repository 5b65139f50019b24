"""Views for tests: made by hand from a few rows, and random ones; their arrays are read-only."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import chain

import numpy as np
from hypothesis import strategies as st

from testbed.scheduling.policies.capacity import offsets
from testbed.scheduling.policies.state import Cluster, Jobs
from testbed.scheduling.policies.view import NOT_PLACED, ClusterView, Event, JobState


@dataclass
class Row:
    """A job of a view; `nodes` makes it running."""

    tasks: int
    cpu: float = 1.0
    mem: float = 0.1
    vt: float = 0.0
    submit: float = 0.0
    nodes: tuple[int, ...] = ()
    paused: bool = False
    start: float = float("nan")
    estimate: float = float("nan")
    urgent: bool = False


def view_of(rows, nodes, time_s=1000.0, down=()):
    available = np.ones(nodes, dtype=np.bool_)
    available[list(down)] = False
    state = [JobState.RUNNING if r.nodes else JobState.PAUSED if r.paused else JobState.WAITING for r in rows]
    places = [list(r.nodes) if r.nodes else [NOT_PLACED] * r.tasks for r in rows]
    assert all(len(p) == r.tasks for p, r in zip(places, rows, strict=True))
    view = ClusterView(
        time_s=time_s,
        node_available=available,
        job_id=np.arange(100, 100 + len(rows), dtype=np.int64),
        submit_time_s=np.array([r.submit for r in rows], dtype=np.float64),
        tasks=np.array([r.tasks for r in rows], dtype=np.int64),
        cpu_need_frac=np.array([r.cpu for r in rows], dtype=np.float64),
        mem_req_frac=np.array([r.mem for r in rows], dtype=np.float64),
        virtual_time_s=np.array([r.vt for r in rows], dtype=np.float64),
        state=np.array(state, dtype=np.int8),
        task_node=np.array([*chain(*places)], dtype=np.int64),
        start_time_s=np.array([r.start for r in rows], dtype=np.float64),
        estimate_s=np.array([r.estimate for r in rows], dtype=np.float64),
        urgent=np.array([r.urgent for r in rows], dtype=np.bool_),
    )
    for field in fields(view):
        column = getattr(view, field.name)
        if isinstance(column, np.ndarray):
            column.flags.writeable = False
    return view


def node_usage(task_node, tasks, amount_frac, nodes):
    """Sum `amount_frac` (a row) of every placed task by node, with an independent implementation."""
    placed = task_node != NOT_PLACED
    return np.bincount(task_node[placed], weights=np.repeat(amount_frac, tasks)[placed], minlength=nodes)


def state_of(view):
    """Return the arguments of kernels, as a policy makes them from a view; the cluster is writable."""
    count = view.tasks.size
    jobs = Jobs(
        view.submit_time_s.copy(),
        offsets(view.tasks),
        view.cpu_need_frac.copy(),
        view.mem_req_frac.copy(),
        np.ones(count) if view.weight is None else view.weight.copy(),
        np.zeros(count) if view.least_yield_frac is None else view.least_yield_frac.copy(),
    )
    return jobs, Cluster(
        view.node_available.copy(),
        view.virtual_time_s.copy(),
        view.state == JobState.RUNNING,
        view.task_node.copy(),
        np.zeros(view.tasks.size),
    )


def places_of(decision, view):
    """The nodes of every job: a list of lists, empty if the job does not run."""
    out, at = [], 0
    for tasks in view.tasks:
        nodes = decision.task_node[at : at + tasks].tolist()
        out.append([] if NOT_PLACED in nodes else nodes)
        at += tasks
    return out


@st.composite
def views(draw, whole_nodes=False):
    """A consistent view and an event on it: running jobs fit into memory, some nodes are down, some jobs are new."""
    nodes = draw(st.integers(1, 5))
    used = np.zeros(nodes)
    rows, new = [], []
    submit = 0.0
    for index in range(draw(st.integers(0, 9))):
        submit += draw(st.sampled_from([0.0, 7.0, 60.0]))
        tasks = draw(st.integers(1, 6))
        row = Row(
            tasks=tasks,
            cpu=draw(st.sampled_from([0.1, 0.25, 0.3, 0.5, 1.0])),
            mem=draw(st.integers(1, 10)) / 10,
            submit=submit,
            estimate=draw(st.sampled_from([10.0, 100.0, 1000.0])),
        )
        kind = draw(st.sampled_from(["running", "running", "waiting", "paused", "new"]))
        if kind == "new":
            new.append(100 + index)
        elif kind != "waiting":
            row.vt = draw(st.sampled_from([0.0, 1.0, 50.0, 300.0, 599.0, 600.0, 5000.0]))
            row.start = submit
            row.paused = True
        if kind == "running":
            row.nodes, used = _place_somehow(draw, row, used, whole_nodes=whole_nodes)
        rows.append(row)
    down = draw(st.sets(st.integers(0, nodes - 1), max_size=2))
    event = Event(
        completed=draw(st.sampled_from([(), (7,)])),
        submitted=tuple(new),
        periodic=draw(st.booleans()),
        changed=bool(down),
    )
    return view_of(rows, nodes, time_s=submit + draw(st.sampled_from([0.0, 1.0, 900.0])), down=down), event


def _place_somehow(draw, row, used, *, whole_nodes):
    after = used.copy()
    places = []
    for _ in range(row.tasks):
        need = 1.0 if whole_nodes else row.mem
        fitting = np.flatnonzero(after + need <= 1.0 + 1e-9)
        if fitting.size == 0:
            return (), used
        node = int(fitting[draw(st.integers(0, fitting.size - 1))])
        places.append(node)
        after[node] += need
    return tuple(places), after
