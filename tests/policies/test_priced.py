"""Passes that know the cost of moves: by hand, and never worse by their own measure; the limit of moves holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import UserError
from testbed.scheduling.compiler import can_compile
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.policies.priced import PricedPolicy
from testbed.scheduling.policies.view import ClusterView, Decision, Event, JobState
from testbed.scheduling.simulation.compiling import AT_ONCE, NEVER
from testbed.scheduling.simulation.loop import run_loop
from testbed.scheduling.simulation.overheads import constant
from testbed.scheduling.simulation.simulate import simulate
from testbed.scheduling.workload.jobs import Job

PASS = Event(periodic=True)
PLAIN = "/per/OPT=MIN"


def view(jobs: Sequence[tuple[float, float, tuple[int, ...]]], nodes: int, cost_s: float | None) -> ClusterView:
    """Return running jobs of (CPU need, memory, nodes), each with virtual time in proportion to its row."""
    count = len(jobs)
    return ClusterView(
        time_s=1200.0, node_available=np.ones(nodes, dtype=np.bool_), job_id=np.arange(1, count + 1),
        submit_time_s=np.zeros(count), tasks=np.array([len(where) for _, _, where in jobs]),
        cpu_need_frac=np.array([need for need, _, _ in jobs]), mem_req_frac=np.array([memory for _, memory, _ in jobs]),
        virtual_time_s=100.0 * np.arange(1, count + 1), state=np.full(count, JobState.RUNNING, dtype=np.int8),
        task_node=np.array([node for _, _, where in jobs for node in where]), start_time_s=np.zeros(count),
        estimate_s=np.full(count, np.nan), urgent=np.zeros(count, dtype=np.bool_),
        move_cost_s=None if cost_s is None else np.full(count, cost_s),
    )  # fmt: skip


def moved(seen: ClusterView, decision: Decision) -> list[int]:
    """Return the ids of jobs that continue to run, but on other nodes."""
    offset = np.concatenate(([0], np.cumsum(seen.tasks)))
    found = []
    for row, job in enumerate(seen.job_id.tolist()):
        before, after = (sorted(nodes[offset[row] : offset[row + 1]]) for nodes in (seen.task_node, decision.task_node))
        if before[0] >= 0 and after[0] >= 0 and before != after:
            found.append(job)
    return found


def test_a_job_moves_only_if_all_gain_more_than_it_loses() -> None:
    """Two jobs share a node at yields of 0.5; another node is idle. One of them moves, and gets 600 - c of 600 s."""
    shared = [(1.0, 0.3, (0,)), (1.0, 0.3, (0,))]
    plain = parse(PLAIN).decide(view(shared, 2, None), PASS)
    assert len(moved(view(shared, 2, None), plain)) == 1
    knows = parse(f"{PLAIN}/KNOWS=cost")
    for cost_s, moves in ((0.0, 1), (299.0, 1), (301.0, 0), (5000.0, 0)):
        seen = view(shared, 2, cost_s)
        found = knows.decide(seen, PASS)
        assert len(moved(seen, found)) == moves, cost_s
        assert found.yield_frac.tolist() == ([1.0, 1.0] if moves else [0.5, 0.5])
    longer = parse(f"{PLAIN}/KNOWS=cost:1200")
    assert len(moved(view(shared, 2, 301.0), longer.decide(view(shared, 2, 301.0), PASS))) == 1


def test_at_most_so_many_move() -> None:
    """Three nodes have two jobs each, and three have none: three moves bring all yields to 1, two leave one pair."""
    pairs = [(1.0, 0.2, (node,)) for node in (0, 0, 1, 1, 2, 2)]
    for most in (0, 1, 2, 3, 9):
        seen = view(pairs, 6, None)
        found = parse(f"{PLAIN}/MOVES={most}").decide(seen, PASS)
        assert len(moved(seen, found)) == min(most, 3)
        assert sorted(found.yield_frac.tolist()) == [0.5] * (6 - 2 * min(most, 3)) + [1.0] * 2 * min(most, 3)


def test_other_events_are_answered_as_without_the_suffix() -> None:
    seen = view([(1.0, 0.3, (0,)), (1.0, 0.3, (0,)), (1.0, 0.8, (1,))], 3, 1.0)
    policy = parse("GreedyPM */per/OPT=MIN/KNOWS=cost/MOVES=1")
    event = Event(completed=(9,))
    assert isinstance(policy, PricedPolicy)
    plain, priced = policy.policy.decide(seen, event), policy.decide(seen, event)
    assert plain.task_node.tolist() == priced.task_node.tolist()
    assert plain.yield_frac.tolist() == priced.yield_frac.tolist()


def test_a_job_resumes_where_its_images_are() -> None:
    """All nodes are free, and a plan has no reason to prefer one; running jobs keep their nodes first."""
    for images in range(4):
        seen = view([(1.0, 0.3, (-1,)), (1.0, 0.3, (-1, -1))], 4, 10.0)
        seen = replace(
            seen, state=np.array([JobState.PAUSED, JobState.WAITING], dtype=np.int8),
            image_node=np.array([images, -1, -1]),
        )  # fmt: skip
        found = parse(f"{PLAIN}/KNOWS=cost").decide(seen, PASS)
        assert found.task_node[0] == images
        assert len(set(found.task_node.tolist())) == 3
        both = replace(
            view([(1.0, 0.3, (-1,)), (1.0, 0.9, (images,))], 4, 0.0),
            state=np.array([JobState.PAUSED, JobState.RUNNING], dtype=np.int8), image_node=np.array([images, -1]),
        )  # fmt: skip
        found = parse(f"{PLAIN}/KNOWS=cost").decide(both, PASS)
        assert found.task_node[1] == images
        assert found.task_node[0] not in (-1, images)


def test_no_transfer_of_images_counts_more_than_a_task_that_stays() -> None:
    """A job of eight tasks runs on every node, and many paused jobs have their images on the first ones."""
    wide = tuple(range(8))
    seen = view([(1.0, 0.55, wide), *[(0.1, 0.1, (-1,))] * 20], 9, 0.0)
    seen = replace(
        seen, state=np.array([JobState.RUNNING, *[JobState.PAUSED] * 20], dtype=np.int8),
        image_node=np.array([-1] * 8 + [0] * 20),
    )  # fmt: skip
    found = parse(f"{PLAIN}/KNOWS=cost").decide(seen, PASS)
    assert moved(seen, found) == []


JOBS = st.lists(
    st.tuples(
        st.integers(0, 4000), st.integers(1, 4), st.sampled_from((0.25, 0.5, 1.0)), st.sampled_from((0.1, 0.3, 0.6)),
        st.integers(1, 5000),
    ),
    min_size=1, max_size=10,
)  # fmt: skip
BASES = ("/per/OPT=MIN", "GreedyPM */per/OPT=MIN/MINVT=600", "/stretch-per/OPT=MAX", "GreedyP */per/OPT=AVG")


def made(rows: list[tuple[int, int, float, float, int]]) -> list[Job]:
    return [
        Job(number, float(submit), tasks, need, memory, float(run))
        for number, (submit, tasks, need, memory, run) in enumerate(sorted(rows))
    ]


@given(JOBS, st.sampled_from(BASES), st.sampled_from(("/KNOWS=cost", "/MOVES=1", "/KNOWS=cost/MOVES=2")))
def test_runs_are_sound_and_keep_the_limit(rows: list, base: str, suffix: str) -> None:
    policy = parse(base + suffix)
    run = simulate(made(rows), 4, policy, constant(100.0), debug=True, compiling=NEVER)
    most = {"/KNOWS=cost": 10, "/MOVES=1": 1, "/KNOWS=cost/MOVES=2": 2}[suffix]
    if base.startswith("/"):  # such policies move jobs only in passes
        _, counts = np.unique(run.moves.time_s[run.moves.kind == 1], return_counts=True)
        assert counts.max(initial=0) <= most


@given(JOBS, st.sampled_from(BASES), st.sampled_from(("/KNOWS=cost", "/MOVES=1", "/KNOWS=cost/MOVES=2")))
def test_views_and_kernels_have_the_same_columns(rows: list, base: str, suffix: str) -> None:
    policy = parse(base + suffix)
    table = constant(100.0).table(8.0)
    one, other = (
        run_loop(made(rows), 4, policy, table, record=True, compiling=NEVER, views=views) for views in (False, True)
    )
    assert one.end_s.tobytes() == other.end_s.tobytes()
    assert one.recording is not None
    assert other.recording is not None
    assert one.recording.nodes.tolist() == other.recording.nodes.tolist()
    assert one.migrations.tolist() == other.migrations.tolist()


@given(JOBS, st.sampled_from(BASES))
def test_what_costs_nothing_is_never_worse(rows: list, base: str) -> None:
    """With a cost of 0 a job stays on its nodes only if no other job loses by that."""
    policy = parse(base + "/KNOWS=cost")
    assert isinstance(policy, PricedPolicy)
    seen: list[tuple[ClusterView, Event]] = []
    plain = policy.policy

    class Asked(type(plain)):  # type: ignore[misc]
        kernels = None

        def decide(self, view: ClusterView, event: Event) -> Decision:
            seen.append((view, event))
            return plain.decide(view, event)

    simulate(made(rows), 4, Asked(plain.name, plain.rules), constant(100.0))
    for view_of, event in seen:
        if event.periodic:
            free = replace(view_of, move_cost_s=np.zeros(view_of.tasks.size))
            one, other = plain.decide(view_of, event), policy.decide(free, event)
            ran = one.yield_frac > 0.0
            if base != "/stretch-per/OPT=MAX" and (ran == (other.yield_frac > 0.0)).all() and ran.any():
                assert other.yield_frac[ran].min() >= one.yield_frac[ran].min() - 1e-9


@pytest.mark.long
@pytest.mark.skipif(not can_compile(), reason="numba is not installed")
def test_compiled_and_plain_agree_to_the_bit() -> None:
    draw = np.random.default_rng(3)
    jobs = [
        Job(n, float(t), int(draw.integers(1, 5)), float(draw.choice([0.25, 0.5, 1.0])), float(draw.choice([0.1, 0.3])),
            float(draw.integers(1, 9000)))
        for n, t in enumerate(np.sort(draw.integers(0, 20000, 40)))
    ]  # fmt: skip
    policy = parse("GreedyPM */per/OPT=MIN/MINVT=600/KNOWS=cost/MOVES=2")
    one, other = (simulate(jobs, 8, policy, constant(120.0), compiling=how) for how in (NEVER, AT_ONCE))
    assert one.end_s.tobytes() == other.end_s.tobytes()
    assert one.migrations.tolist() == other.migrations.tolist()
    assert one.migrations.sum() > 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("FCFS/KNOWS=cost", "policy FCFS: expected KNOWS= and MOVES= after a DFRS policy"),
        ("Greedy */OPT=MIN/MOVES=2", "it has no periodic pass whose moves KNOWS= or MOVES= could change"),
        ("/per/OPT=MIN/KNOWS=price", "'KNOWS=price': expected, at most once each and last, /KNOWS=cost"),
        ("/per/OPT=MIN/MOVES=1/MOVES=2", "'MOVES=2': expected, at most once each"),
        ("/per/OPT=MIN/MOVES=-1", "'MOVES=-1': expected"),
    ],
)
def test_nonsense_is_refused(name: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        parse(name)
    assert message in str(refused.value)


def test_names_are_printed_as_they_are_parsed() -> None:
    for name in ("/per/OPT=MIN/KNOWS=cost", "/per/OPT=MIN/MOVES=0", "/per/OPT=MIN/KNOWS=cost:1200/MOVES=3"):
        assert parse(name).name == name
        assert parse(name.lower()).name == name
    assert parse("/per/OPT=MIN/KNOWS=cost/WITHIN=dps").name == "/per/OPT=MIN/KNOWS=cost/WITHIN=dps"
