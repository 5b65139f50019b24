"""The journal entry of a decision: the view and the event that the policy received, and its choice."""

from __future__ import annotations

from typing import Annotated

import msgspec

from testbed.run.entry import Entry, about


class View(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The view of the policy; columns of jobs have one value per job in the system, exact to the last bit."""

    time_s: Annotated[float, about("time of the decision", "trace s")]
    node_available: Annotated[tuple[bool, ...], about("whether a node can be used, per node")]
    job_id: Annotated[tuple[int, ...], about("ids of the jobs")]
    submit_time_s: Annotated[tuple[float, ...], about("times of submission", "trace s")]
    tasks: Annotated[tuple[int, ...], about("numbers of tasks")]
    cpu_need_frac: Annotated[tuple[float, ...], about("CPU needs of a task, as fractions of a node")]
    mem_req_frac: Annotated[tuple[float, ...], about("memory requirements of a task, as fractions of a node")]
    virtual_time_s: Annotated[tuple[float, ...], about("work done so far", "trace s on dedicated nodes")]
    state: Annotated[tuple[int, ...], about("states: 0 waiting, 1 running, 2 paused")]
    task_node: Annotated[tuple[int, ...], about("node of each task of each job in turn, -1 for a task without one")]
    start_time_s: Annotated[tuple[float | None, ...], about("times of the first start, null before it", "trace s")]
    estimate_s: Annotated[tuple[float | None, ...], about("estimated run times, null if unknown", "trace s")]
    urgent: Annotated[tuple[bool, ...], about("whether others may be paused for it; left out if false for all")] = ()
    weight: Annotated[tuple[float, ...], about("weights of the jobs; left out if all are 1")] = ()
    least_yield_frac: Annotated[tuple[float, ...], about("guaranteed yields; left out if all are 0")] = ()
    move_cost_s: Annotated[
        tuple[float, ...], about("time for which a move stops each job; left out unless the policy uses it", "trace s")
    ] = ()
    image_node: Annotated[
        tuple[int, ...], about("node of a paused task's image, -1 for other tasks; left out unless the policy uses it")
    ] = ()


class Trigger(msgspec.Struct, frozen=True, kw_only=True):
    """The event that caused the decision."""

    completed: Annotated[tuple[int, ...], about("ids of jobs that ended since the last decision")]
    submitted: Annotated[tuple[int, ...], about("ids of jobs that were submitted, or are tried again")]
    periodic: Annotated[bool, about("whether it is the policy's periodic pass")]
    changed: Annotated[bool, about("whether the available nodes changed, or an operation failed")]


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The choice of the policy; its rows are those of the view."""

    task_node: Annotated[tuple[int, ...], about("node of each task of each job in turn, -1 for a job that is to wait")]
    yield_frac: Annotated[tuple[float, ...], about("yields of the jobs, as fractions of their CPU needs")]


class Decision(Entry, frozen=True, kw_only=True, tag="decision"):
    """The policy decided which jobs run, on which nodes and at which yields."""

    decide_s: Annotated[float, about("time that the policy took")]
    policy: Annotated[str, about("name of the scheduling policy")]
    view: Annotated[View, about("view of the policy")]
    event: Annotated[Trigger, about("event that caused the decision")]
    decision: Annotated[Choice, about("choice of the policy")]
