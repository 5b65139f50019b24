"""Plans: actions with preconditions that lead from the actual state of jobs to the intended one.

A plan is pure data. Its actions start as soon as their preconditions hold, in any order: `after` names actions of the
same plan that must have succeeded, and the memory that an action needs must be free on its nodes. One more precondition
applies to all: a job takes part in one operation at a time, so an action waits until an operation of an earlier plan on
the same job has ended. A live migration holds memory at both ends until it is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

from testbed.control.save_order import in_order_of_need, staged
from testbed.run.job_history import Wanted
from testbed.scheduling.places import stable_nodes

Target: TypeAlias = Wanted


class Verb(StrEnum):
    """Actions on a job."""

    START = "start"
    CAP = "cap"
    SAVE = "save"
    TRANSFER = "transfer"
    RESTORE = "restore"
    MIGRATE = "migrate"


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The state of a job after its operation in flight, if any.

    `running_on` and `saved_on` give the node of each task; both are None for a job that was never started. With `live`
    the job may migrate live.
    """

    job_id: int
    memory_mib: int
    running_on: tuple[int, ...] | None = None
    yield_frac: float = 0.0
    saved_on: tuple[int, ...] | None = None
    live: bool = True


@dataclass(frozen=True, slots=True)
class MoveRules:
    """The nodes between which jobs migrate live, the memory of every node, and how many saves each makes at once."""

    nodes: frozenset[int]
    memory_mib: tuple[int, ...]
    saves_at_once: int | None = None


NO_MOVES_LIVE = MoveRules(frozenset(), ())


@dataclass(frozen=True, slots=True)
class PlannedAction:
    """One action on one job. `nodes` are the intended nodes of its tasks; for a save their present nodes."""

    verb: Verb
    job_id: int
    nodes: tuple[int, ...]
    yield_frac: float = 0.0
    after: tuple[int, ...] = ()
    needs_mib: tuple[tuple[int, int], ...] = ()


def _needs(nodes: Sequence[int], memory_mib: int) -> tuple[tuple[int, int], ...]:
    return tuple((node, count * memory_mib) for node, count in sorted(Counter(nodes).items()))


def _arriving_mib(job: JobStatus, there: Sequence[int]) -> Counter[int]:
    """Memory that a live migration to `there` takes, by node."""
    moved = zip(job.running_on or (), there, strict=True)
    return Counter({node: count * job.memory_mib for node, count in Counter(b for a, b in moved if a != b).items()})


def _leaving_mib(job: JobStatus, there: Sequence[int]) -> Counter[int]:
    """Memory that a live migration to `there` frees, by node."""
    moved = zip(job.running_on or (), there, strict=True)
    return Counter({node: count * job.memory_mib for node, count in Counter(a for a, b in moved if a != b).items()})


def live_moves(jobs: Sequence[JobStatus], wanted: Mapping[int, Target], live: MoveRules) -> dict[int, tuple[int, ...]]:
    """Return the jobs that can migrate live, in an order in which memory suffices, and their new nodes.

    A migration takes memory at the destination before it frees memory at the source, so migrations can deadlock in a
    circle. A migration counts as possible if its targets have memory for all their intended guests, and for the guests
    that only a later migration of the order removes. Such a migration never blocks forever, whatever the order of other
    actions. If none of the remaining migrations is possible, the job with the least memory is saved and restored
    instead.
    """
    moves: dict[int, tuple[JobStatus, tuple[int, ...]]] = {}
    final_mib: Counter[int] = Counter()
    for job in jobs:
        target = wanted.get(job.job_id)
        if target is None:
            continue
        for node in target.nodes:
            final_mib[node] += job.memory_mib
        if job.running_on is None or not job.live:
            continue
        nodes = stable_nodes(job.running_on, target.nodes)
        ends = {node for pair in zip(job.running_on, nodes, strict=True) if pair[0] != pair[1] for node in pair}
        if ends and ends <= live.nodes:
            moves[job.job_id] = (job, nodes)
    still_there_mib: Counter[int] = Counter()
    for job, nodes in moves.values():
        still_there_mib += _leaving_mib(job, nodes)
    order: dict[int, tuple[int, ...]] = {}
    while moves:
        for job_id, (job, nodes) in moves.items():
            if all(
                final_mib[node] + still_there_mib[node] <= live.memory_mib[node] for node in _arriving_mib(job, nodes)
            ):
                order[job_id] = nodes
                break
        else:
            job_id = min(moves, key=lambda each: moves[each][0].memory_mib * len(moves[each][1]))
        job, nodes = moves.pop(job_id)
        still_there_mib -= _leaving_mib(job, nodes)
    return order


def _migration(job: JobStatus, nodes: tuple[int, ...], yield_frac: float) -> PlannedAction:
    needs = tuple(sorted(_arriving_mib(job, nodes).items()))
    return PlannedAction(Verb.MIGRATE, job.job_id, nodes, yield_frac, (), needs)


def plan(
    jobs: Sequence[JobStatus], wanted: Mapping[int, Target], live: MoveRules = NO_MOVES_LIVE
) -> tuple[PlannedAction, ...]:
    """Return the actions that lead from the jobs' actual state to the wanted one; an unwanted job is saved.

    The order is: saves, which free the memory that other actions need; reductions of caps; increases of caps; live
    migrations (see `live_moves`); all others in the order of the jobs.
    """
    moves = live_moves(jobs, wanted, live)
    by_id = {job.job_id: job for job in jobs}
    migrations = [_migration(by_id[job_id], nodes, wanted[job_id].yield_frac) for job_id, nodes in moves.items()]
    saves: list[PlannedAction] = []
    caps: list[PlannedAction] = []
    chains: list[list[PlannedAction]] = []
    for job in (job for job in jobs if job.job_id not in moves):
        target = wanted.get(job.job_id)
        if target is None:
            if job.running_on is not None:
                saves.append(PlannedAction(Verb.SAVE, job.job_id, job.running_on))
            continue
        if job.running_on is not None:
            nodes = stable_nodes(job.running_on, target.nodes)
            if nodes == job.running_on:
                if target.yield_frac != job.yield_frac:
                    caps.append(PlannedAction(Verb.CAP, job.job_id, nodes, target.yield_frac))
                continue
            saves.append(PlannedAction(Verb.SAVE, job.job_id, job.running_on))
            chains.append(_resume(job, nodes, job.running_on, target.yield_frac, after_save=len(saves) - 1))
        elif job.saved_on is not None:
            nodes = stable_nodes(job.saved_on, target.nodes)
            chains.append(_resume(job, nodes, job.saved_on, target.yield_frac, after_save=None))
        else:
            needs = _needs(target.nodes, job.memory_mib)
            chains.append([PlannedAction(Verb.START, job.job_id, target.nodes, target.yield_frac, (), needs)])
    saves, chains = _staged(saves, chains, by_id, live)
    caps.sort(key=lambda action: action.yield_frac > by_id[action.job_id].yield_frac)
    actions = [*saves, *caps, *migrations]
    for chain in chains:
        for action in chain:
            actions.append(_placed(action, len(actions)))
    return tuple(actions)


def _staged(
    saves: list[PlannedAction], chains: list[list[PlannedAction]], jobs: Mapping[int, JobStatus], rules: MoveRules
) -> tuple[list[PlannedAction], list[list[PlannedAction]]]:
    """Return the saves in the order in which their memory is needed, with limited concurrency, and adjusted chains.

    Each save depends on earlier saves on its nodes, and chains refer to the new positions of their saves. Without a
    limit of concurrent saves the arguments are returned unchanged.
    """
    at_once = rules.saves_at_once
    if at_once is None:
        return saves, chains
    frees = [dict(_needs(save.nodes, jobs[save.job_id].memory_mib)) for save in saves]
    free_mib = Counter(dict(enumerate(rules.memory_mib)))
    for job in jobs.values():
        free_mib.subtract(dict(_needs(job.running_on or (), job.memory_mib)))
    order = in_order_of_need(frees, [dict(chain[-1].needs_mib) for chain in chains], free_mib)
    after = staged([frees[place] for place in order], at_once)
    place_of = {place: now for now, place in enumerate(order)}
    return (
        [replace(saves[place], after=before) for place, before in zip(order, after, strict=True)],
        [
            [replace(action, after=tuple(place_of.get(place, place) for place in action.after)) for action in chain]
            for chain in chains
        ],
    )


_PREVIOUS = -1


def _resume(
    job: JobStatus,
    nodes: tuple[int, ...],
    images_on: tuple[int, ...],
    yield_frac: float,
    after_save: int | None,
) -> list[PlannedAction]:
    first: tuple[int, ...] = () if after_save is None else (after_save,)
    restore = PlannedAction(Verb.RESTORE, job.job_id, nodes, yield_frac, first, _needs(nodes, job.memory_mib))
    if nodes == images_on:
        return [restore]
    transfer = PlannedAction(Verb.TRANSFER, job.job_id, nodes, 0.0, first)
    after_transfer = PlannedAction(Verb.RESTORE, job.job_id, nodes, yield_frac, (_PREVIOUS,), restore.needs_mib)
    return [transfer, after_transfer]


def _placed(action: PlannedAction, position: int) -> PlannedAction:
    """Replace the relative `after` of an action in a chain by its position in the plan."""
    if _PREVIOUS not in action.after:
        return action
    return PlannedAction(action.verb, action.job_id, action.nodes, action.yield_frac, (position - 1,), action.needs_mib)
