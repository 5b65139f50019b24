"""The planner: pure, minimal, and safe to carry out in any order."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from testbed.control.planner import (
    NO_MOVES_LIVE,
    JobStatus,
    MoveRules,
    PlannedAction,
    Target,
    Verb,
    plan,
)
from testbed.scheduling.places import stable_nodes

NODES = 4
MEMORY_MIB = 100
LIVE = MoveRules(frozenset(range(NODES)), (MEMORY_MIB,) * NODES)
some_live = st.sampled_from([
    NO_MOVES_LIVE, LIVE, MoveRules(frozenset({0, 1, 3}), LIVE.memory_mib),
    MoveRules(frozenset(), LIVE.memory_mib, saves_at_once=1), MoveRules(LIVE.nodes, LIVE.memory_mib, saves_at_once=2),
])  # fmt: skip


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[JobStatus], dict[int, Target]]:
    """Jobs in any state and a wanted state, both of which fit the memory of every node."""
    jobs, wanted = [], {}
    used_now, used_then = Counter[int](), Counter[int]()
    for job_id in range(draw(st.integers(1, 6))):
        tasks, memory = draw(st.integers(1, 4)), draw(st.integers(5, 60))
        nodes = st.tuples(*[st.integers(0, NODES - 1)] * tasks)
        state = draw(st.sampled_from(["new", "saved", "running"]))
        here = draw(nodes)
        if state == "running":
            need = Counter({node: count * memory for node, count in Counter(here).items()})
            if all(used_now[node] + mib <= MEMORY_MIB for node, mib in need.items()):
                used_now += need
                jobs.append(
                    JobStatus(job_id, memory, running_on=here, yield_frac=draw(st.sampled_from([0.25, 0.5, 1.0])))
                )
            else:
                jobs.append(JobStatus(job_id, memory, saved_on=here))
        else:
            jobs.append(JobStatus(job_id, memory, saved_on=here if state == "saved" else None))
        there = draw(st.none() | nodes)
        if there is not None:
            need = Counter({node: count * memory for node, count in Counter(there).items()})
            if all(used_then[node] + mib <= MEMORY_MIB for node, mib in need.items()):
                used_then += need
                wanted[job_id] = Target(there, draw(st.sampled_from([0.25, 0.5, 1.0])))
    return jobs, wanted


def carry_out(jobs: list[JobStatus], actions: tuple[PlannedAction, ...], pick: st.DataObject) -> dict[int, JobStatus]:
    """Carry out a plan, one unblocked action at a time in an order that hypothesis picks.

    A live migration has a beginning and an end, and in between occupies memory on both nodes.
    """
    state = {job.job_id: job for job in jobs}
    done: set[int] = set()
    flying: dict[int, PlannedAction] = {}
    while len(done) < len(actions):
        used = Counter[int]()
        for job in state.values():
            for node in job.running_on or ():
                used[node] += job.memory_mib
        for action in flying.values():
            used.update(dict(action.needs_mib))
        assert all(mib <= MEMORY_MIB for mib in used.values())
        free = [
            index
            for index, action in enumerate(actions)
            if index not in done
            and index not in flying
            and set(action.after) <= done
            and all(used[node] + mib <= MEMORY_MIB for node, mib in action.needs_mib)
        ]
        assert free or flying, "nothing is unblocked: the plan is stuck"
        index = pick.draw(st.sampled_from([*free, *flying]))
        if actions[index].verb is Verb.MIGRATE and flying.pop(index, None) is None:
            flying[index] = actions[index]
            continue
        action, job = actions[index], state[actions[index].job_id]
        match action.verb:
            case Verb.SAVE:
                assert job.running_on == action.nodes
                state[job.job_id] = JobStatus(job.job_id, job.memory_mib, saved_on=job.running_on)
            case Verb.TRANSFER:
                assert job.saved_on is not None
                state[job.job_id] = JobStatus(job.job_id, job.memory_mib, saved_on=action.nodes)
            case Verb.CAP:
                assert job.running_on == action.nodes
                state[job.job_id] = JobStatus(job.job_id, job.memory_mib, job.running_on, action.yield_frac)
            case Verb.RESTORE:
                assert job.saved_on == action.nodes
                state[job.job_id] = JobStatus(job.job_id, job.memory_mib, action.nodes, action.yield_frac)
            case Verb.START:
                assert job.saved_on is None
                assert job.running_on is None
                state[job.job_id] = JobStatus(job.job_id, job.memory_mib, action.nodes, action.yield_frac)
            case Verb.MIGRATE:
                assert job.running_on is not None
                state[job.job_id] = JobStatus(job.job_id, job.memory_mib, action.nodes, action.yield_frac)
        done.add(index)
    return state


@given(situations(), some_live, st.data())
def test_any_order_of_unblocked_actions_reaches_what_is_wanted(
    situation: tuple[list[JobStatus], dict[int, Target]], live: MoveRules, data: st.DataObject
) -> None:
    jobs, wanted = situation
    final = carry_out(jobs, plan(jobs, wanted, live), data)
    for job in jobs:
        target, now = wanted.get(job.job_id), final[job.job_id]
        if target is None:
            assert now.running_on is None
        else:
            assert now.running_on is not None
            assert sorted(now.running_on) == sorted(target.nodes)
            assert now.yield_frac == target.yield_frac


@given(situations(), some_live)
def test_a_plan_does_nothing_needless(situation: tuple[list[JobStatus], dict[int, Target]], live: MoveRules) -> None:
    jobs, wanted = situation
    status = {job.job_id: job for job in jobs}
    for action in plan(jobs, wanted, live):
        job, target = status[action.job_id], wanted.get(action.job_id)
        if action.verb is Verb.SAVE and target is not None:
            assert sorted(job.running_on or ()) != sorted(target.nodes)
        if action.verb is Verb.MIGRATE:
            assert target is not None
            moved = [ends for ends in zip(job.running_on or (), action.nodes, strict=True) if ends[0] != ends[1]]
            assert {node for ends in moved for node in ends} <= live.nodes
            assert dict(action.needs_mib) == {
                node: count * job.memory_mib for node, count in Counter(end for _, end in moved).items()
            }
        if action.verb is Verb.CAP:
            assert target is not None
            assert job.yield_frac != target.yield_frac
        if action.verb is Verb.TRANSFER:
            assert (job.running_on or job.saved_on) != action.nodes


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.data())
def test_stable_nodes_moves_as_few_tasks_as_possible(current: list[int], data: st.DataObject) -> None:
    wanted = data.draw(st.lists(st.integers(0, 5), min_size=len(current), max_size=len(current)))
    placed = stable_nodes(current, wanted)
    assert Counter(placed) == Counter(wanted)
    kept = sum(a == b for a, b in zip(current, placed, strict=True))
    assert kept == sum((Counter(current) & Counter(wanted)).values())


def test_a_migration_saves_moves_only_the_image_that_must_and_restores() -> None:
    actions = plan([JobStatus(7, 10, running_on=(0, 1), yield_frac=1.0)], {7: Target((1, 2), 0.5)})
    assert [(a.verb, a.nodes, a.after) for a in actions] == [
        (Verb.SAVE, (0, 1), ()),
        (Verb.TRANSFER, (2, 1), (0,)),
        (Verb.RESTORE, (2, 1), (1,)),
    ]
    assert actions[2].needs_mib == ((1, 10), (2, 10))


def test_only_what_moves_needs_memory_live() -> None:
    (action,) = plan([JobStatus(7, 10, running_on=(0, 1), yield_frac=1.0)], {7: Target((1, 2), 0.5)}, LIVE)
    assert (action.verb, action.nodes, action.yield_frac) == (Verb.MIGRATE, (2, 1), 0.5)
    assert action.needs_mib == ((2, 10),)


def test_a_circle_without_room_is_broken_by_saving_the_smallest() -> None:
    jobs = [JobStatus(1, 60, (0,), 1.0), JobStatus(2, 50, (1,), 1.0)]
    wanted = {1: Target((1,), 1.0), 2: Target((0,), 1.0)}
    assert [(a.verb, a.job_id) for a in plan(jobs, wanted, LIVE)] == [
        (Verb.SAVE, 2),
        (Verb.MIGRATE, 1),
        (Verb.TRANSFER, 2),
        (Verb.RESTORE, 2),
    ]
    roomy = [JobStatus(1, 50, (0,), 1.0), JobStatus(2, 50, (1,), 1.0)]
    assert {a.verb for a in plan(roomy, wanted, LIVE)} == {Verb.MIGRATE}


def test_a_start_cannot_take_the_memory_that_a_circle_needs() -> None:
    jobs = [JobStatus(1, 40, (1,), 1.0), JobStatus(2, 60, (0,), 1.0), JobStatus(3, 40), JobStatus(4, 20, (1,), 1.0)]
    wanted = {1: Target((0,), 1.0), 2: Target((1,), 1.0), 3: Target((0,), 1.0), 4: Target((1,), 1.0)}
    assert (Verb.SAVE, 1) in [(a.verb, a.job_id) for a in plan(jobs, wanted, LIVE)]
    del wanted[3]  # without this start, memory suffices for the others one after the other
    assert [(a.verb, a.job_id) for a in plan(jobs, wanted, LIVE)] == [(Verb.MIGRATE, 1), (Verb.MIGRATE, 2)]


def test_a_job_whose_live_migration_failed_is_saved() -> None:
    (first, *_) = plan([JobStatus(1, 60, (0,), 1.0, live=False)], {1: Target((1,), 1.0)}, LIVE)
    assert first.verb is Verb.SAVE


def test_cuts_of_caps_come_before_raises() -> None:
    jobs = [JobStatus(1, 10, (0,), 0.5), JobStatus(2, 10, (0,), 0.5)]
    actions = plan(jobs, {1: Target((0,), 0.75), 2: Target((0,), 0.25)})
    assert [action.job_id for action in actions] == [2, 1]


@given(situations(), st.integers(1, 3))
def test_no_node_makes_more_saves_at_once_than_it_may(
    situation: tuple[list[JobStatus], dict[int, Target]], at_once: int
) -> None:
    jobs, wanted = situation
    actions = plan(jobs, wanted, MoveRules(frozenset(), (MEMORY_MIB,) * NODES, at_once))
    saves = {place: action for place, action in enumerate(actions) if action.verb is Verb.SAVE}
    for node in range(NODES):
        here = [place for place, action in saves.items() if node in action.nodes]
        for number, place in enumerate(here[at_once:]):
            assert here[number] in actions[place].after
    plain = plan(jobs, wanted, MoveRules(frozenset(), (MEMORY_MIB,) * NODES))
    assert Counter((each.verb, each.job_id, each.nodes) for each in actions) == Counter(
        (each.verb, each.job_id, each.nodes) for each in plain
    )


def test_what_a_waiting_job_needs_is_saved_first() -> None:
    jobs = [
        JobStatus(1, 20, (0,), 1.0), JobStatus(2, 30, (1,), 1.0), JobStatus(3, 50, (0,), 1.0), JobStatus(4, 60),
    ]  # fmt: skip
    actions = plan(jobs, {4: Target((0,), 1.0)}, MoveRules(frozenset(), (100, 100), 1))
    assert [(a.verb, a.job_id, a.after) for a in actions] == [
        (Verb.SAVE, 3, ()),  # after this save there is memory
        (Verb.SAVE, 1, (0,)),
        (Verb.SAVE, 2, ()),  # on another node
        (Verb.START, 4, ()),
    ]


def test_a_chain_follows_its_own_save_wherever_that_went() -> None:
    jobs = [JobStatus(1, 20, (0,), 1.0), JobStatus(2, 80, (0,), 1.0), JobStatus(3, 90)]
    actions = plan(jobs, {1: Target((1,), 1.0), 3: Target((0,), 1.0)}, MoveRules(frozenset(), (100, 100), 1))
    assert [(a.verb, a.job_id, a.after) for a in actions] == [
        (Verb.SAVE, 2, ()),
        (Verb.SAVE, 1, (0,)),
        (Verb.TRANSFER, 1, (1,)),
        (Verb.RESTORE, 1, (2,)),
        (Verb.START, 3, ()),
    ]
