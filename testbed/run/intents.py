"""The intent of a decision for a job, and the operation in progress on a job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wanted:
    """The intent of the last decision for a job: task i on node `nodes[i]`, all at one yield."""

    nodes: tuple[int, ...]
    yield_frac: float


@dataclass(frozen=True, slots=True)
class Flight:
    """The operation in progress on a job, since `begin_s` wall seconds of the run.

    * `nodes`: the nodes of its intent, by task
    * `writes`: the copies of images that it makes, as (node, name)
    * `arrived`: the tasks that have migrated live so far
    * `progressed`: the tasks that have made progress on their new nodes
    * `for_a_move`: whether the last decision before it wanted the job to run
    """

    action: int
    verb: str
    nodes: tuple[int, ...]
    yield_frac: float
    begin_s: float
    for_a_move: bool
    writes: frozenset[tuple[int, str]] = frozenset()
    arrived: frozenset[int] = frozenset()
    progressed: frozenset[int] = frozenset()
