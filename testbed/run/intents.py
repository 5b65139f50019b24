"""The intent of a decision for a job, and the operation on it that is under way."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wanted:
    """The intent of the last decision for a job: task i on node `nodes[i]`, all at one yield."""

    nodes: tuple[int, ...]
    yield_frac: float


@dataclass(frozen=True, slots=True)
class Flight:
    """The operation on a job that is under way, since `begin_s` wall seconds of the run.

    `nodes` are those of its intent, `writes` the copies of images that it makes, as (node, name), `arrived` the tasks
    that have migrated live by now, `progressed` those that have made progress at its nodes, and `for_a_move` whether
    the job was wanted to run when it began.
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
