"""Weights, guarantees and decay: by hand, compared with the plain kernel if all are equal, and in whole runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.errors import UserError
from testbed.scheduling.compiler import can_compile
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.policies.guarantees import guarantees_fit
from testbed.scheduling.policies.view import ClusterView, Event, JobState, can_ever_run
from testbed.scheduling.simulation.compiling import AT_ONCE, NEVER
from testbed.scheduling.simulation.overheads import constant
from testbed.scheduling.simulation.simulate import simulate
from testbed.scheduling.workload.jobs import Job

BASE = "Greedy */OPT=MIN"
NOTHING = Event(completed=(99,))


def view(jobs: list[tuple[float, tuple[int, ...]]], nodes: int, **columns: list[float]) -> ClusterView:
    """Return running jobs of (CPU need, nodes)."""
    count = len(jobs)
    virtual_s = columns.pop("virtual_time_s", [100.0] * count)
    return ClusterView(
        time_s=5000.0, node_available=np.ones(nodes, dtype=np.bool_), job_id=np.arange(1, count + 1),
        submit_time_s=np.zeros(count), tasks=np.array([len(where) for _, where in jobs]),
        cpu_need_frac=np.array([need for need, _ in jobs]), mem_req_frac=np.full(count, 0.05),
        virtual_time_s=np.array(virtual_s), state=np.full(count, JobState.RUNNING, dtype=np.int8),
        task_node=np.array([node for _, where in jobs for node in where]), start_time_s=np.zeros(count),
        estimate_s=np.full(count, np.nan), urgent=np.zeros(count, dtype=np.bool_),
        **{name: np.array(values) for name, values in columns.items()},
    )  # fmt: skip


def yields(seen: ClusterView, suffix: str) -> list[float]:
    return parse(BASE + suffix).decide(seen, NOTHING).yield_frac.tolist()


def test_yields_are_in_proportion_to_weights_up_to_1() -> None:
    crowd = [(1.0, (0,)), (1.0, (0,)), (1.0, (0,))]
    assert yields(view(crowd, 1, weight=[1.0, 1.0, 2.0]), "/WEIGHTS=jobs") == pytest.approx([0.25, 0.25, 0.5])
    assert yields(view(crowd, 1, weight=[1.0, 1.0, 2.0]), "") == pytest.approx([1 / 3] * 3), "only with the suffix"
    light = [(0.2, (0,)), (1.0, (0,))]
    assert yields(view(light, 1, weight=[9.0, 1.0]), "/WEIGHTS=jobs") == pytest.approx([1.0, 0.8])


def test_a_parallel_job_is_held_by_its_fullest_node_and_others_take_the_rest() -> None:
    jobs = [(1.0, (0, 1)), (1.0, (0,)), (1.0, (1,)), (1.0, (1,))]
    found = yields(view(jobs, 2, weight=[2.0, 1.0, 1.0, 1.0]), "/WEIGHTS=jobs")
    assert found == pytest.approx([0.5, 0.5, 0.25, 0.25])


def test_guarantees_come_first_and_nobody_gets_nothing() -> None:
    crowd = [(1.0, (0,)), (1.0, (0,)), (1.0, (0,))]
    found = yields(view(crowd, 1, least_yield_frac=[0.8, 0.0, 0.0]), "/LEAST=jobs")
    assert found == pytest.approx([0.8, 0.1, 0.1])
    most = yields(view(crowd, 1, least_yield_frac=[0.99, 0.0, 0.0]), "/LEAST=jobs")
    assert most == pytest.approx([0.99, 0.005, 0.005])


def test_weights_decay_with_virtual_time() -> None:
    crowd = [(1.0, (0,)), (1.0, (0,))]
    found = yields(view(crowd, 1, virtual_time_s=[0.0, 3600.0]), "/DECAY=3600")
    assert found == pytest.approx([2 / 3, 1 / 3])


def test_a_job_whose_guarantee_has_no_room_waits_and_an_older_one_keeps_its_own() -> None:
    seen = view([(1.0, (0,)), (1.0, (0,))], 1, least_yield_frac=[0.6, 0.6])
    new = replace(
        seen, state=np.array([JobState.RUNNING, JobState.WAITING], dtype=np.int8), task_node=np.array([0, -1])
    )
    found = parse(f"{BASE}/LEAST=jobs").decide(new, Event(submitted=(2,)))
    assert found.task_node.tolist() == [0, -1]
    assert found.yield_frac.tolist() == [1.0, 0.0]
    assert parse(BASE).decide(new, Event(submitted=(2,))).task_node.tolist() == [0, 0]


def arrives(seen: ClusterView, memory: list[float]) -> ClusterView:
    """Return the view with its last job waiting, and with this memory of tasks."""
    state, nodes = seen.state.copy(), seen.task_node.copy()
    state[-1], nodes[-1] = JobState.WAITING, -1
    return replace(seen, state=state, task_node=nodes, mem_req_frac=np.array(memory))


@pytest.mark.parametrize("base", [BASE, "GreedyP */OPT=MIN", "GreedyPM */OPT=MIN"])
def test_a_job_with_a_guarantee_comes_to_a_node_that_can_keep_it(base: str) -> None:
    """It once came to the least loaded node, and waited because that one had promised too much."""
    jobs = [(1.0, (0,)), (0.6, (1,)), (0.6, (1,)), (1.0, (0,))]
    seen = arrives(view(jobs, 2, least_yield_frac=[0.5, 0.0, 0.0, 0.5]), [0.1] * 4)
    found = parse(f"{base}/LEAST=jobs").decide(seen, Event(submitted=(4,)))
    assert found.task_node.tolist() == [0, 1, 1, 1]
    assert found.yield_frac[3] >= 0.5


@pytest.mark.parametrize("base", ["GreedyP */OPT=MIN", "GreedyPM */OPT=MIN"])
def test_no_job_is_paused_for_one_that_no_node_can_guarantee_its_yield(base: str) -> None:
    """Node 0 has promised too much; on node 1, which could promise it, memory is taken by a guaranteed job."""
    jobs = [(1.0, (0,)), (1.0, (0,)), (0.4, (1,)), (1.0, (0,))]
    seen = view(jobs, 2, least_yield_frac=[0.6, 0.0, 0.6, 0.6])
    found = parse(f"{base}/LEAST=jobs").decide(arrives(seen, [0.3, 0.6, 0.6, 0.5]), Event(submitted=(4,)))
    assert found.task_node.tolist() == [0, 0, 1, -1]
    free = parse(f"{base}/LEAST=jobs").decide(arrives(seen, [0.3, 0.6, 0.4, 0.5]), Event(submitted=(4,)))
    assert free.task_node.tolist() == [0, 0, 1, 1]
    crowded = view([(1.0, (0,)), (1.0, (1,)), (0.4, (1,)), (1.0, (0,))], 2, least_yield_frac=[0.6, 0.0, 0.6, 0.6])
    forced = parse(f"{base}/LEAST=jobs").decide(arrives(crowded, [0.9, 0.5, 0.4, 0.5]), Event(submitted=(4,)))
    assert forced.task_node.tolist() == [0, -1, 1, 1], "the job without a guarantee is paused where that helps"


PASS = Event(periodic=True)


@pytest.mark.parametrize(
    ("suffix", "columns"),
    [
        ("/WEIGHTS=jobs", {"weight": [200.0, 200.0, 1.0]}),
        ("/DECAY=3600", {"virtual_time_s": [1.0, 1.0, 360000.0]}),
    ],
)
def test_a_pass_pauses_no_job_because_another_weighs_much_more(suffix: str, columns: dict[str, list[float]]) -> None:
    seen = view([(1.0, (0,))] * 3, 1, **columns)
    found = parse(f"/per/OPT=MIN{suffix}").decide(seen, PASS)
    assert found.task_node.tolist() == [0, 0, 0]
    assert found.yield_frac.sum() == pytest.approx(1.0)
    assert found.yield_frac[0] == pytest.approx(found.yield_frac[1])
    assert found.yield_frac[0] > 50 * found.yield_frac[2] > 0.0


def test_a_pass_pauses_no_job_beside_pinned_ones_that_weigh_much_more() -> None:
    seen = view([(1.0, (0,))] * 3, 1, weight=[200.0, 200.0, 1.0], virtual_time_s=[100.0, 100.0, 5000.0])
    found = parse("/per/OPT=MIN/MINVT=600/WEIGHTS=jobs").decide(seen, PASS)
    assert found.task_node.tolist() == [0, 0, 0]
    assert found.yield_frac.min() > 0.0


def test_a_pass_packs_no_more_guarantees_than_a_node_keeps() -> None:
    seen = view([(1.0, (0,)), (1.0, (1,)), (1.0, (0,))], 2, least_yield_frac=[0.5, 0.5, 0.0])
    new = replace(
        seen, state=np.array([JobState.RUNNING, JobState.RUNNING, JobState.WAITING], dtype=np.int8),
        task_node=np.array([0, 1, -1]), mem_req_frac=np.array([0.3, 0.3, 0.8]),
    )  # fmt: skip
    found = parse("/per/OPT=MIN/LEAST=jobs").decide(new, PASS)
    assert found.yield_frac[0] >= 0.5
    assert found.yield_frac[1] >= 0.5


@pytest.mark.parametrize(
    ("suffix", "memory", "nodes", "least", "virtual_s", "cost"),
    [
        ("/MOVES=0", [0.2, 0.5, 0.3, 0.3], [0, 0, 1, -1], [0.6, 0.0, 0.0, 0.6], [50.0, 0.0, 50.0, 50.0], None),
        ("/KNOWS=cost", [0.2, 0.5, 0.3, 0.5], [0, 0, 1, -1], [0.6, 0.0, 0.6, 0.6], [0.0, 5000.0, 50.0, 5000.0],
         [0.0, 550.0, 550.0, 0.0]),
    ],
)  # fmt: skip
def test_jobs_that_keep_their_nodes_leave_guarantees_in_force(
    suffix: str, memory: list[float], nodes: list[int], least: list[float], virtual_s: list[float],
    cost: list[float] | None,
) -> None:  # fmt: skip
    seen = view([(1.0, (max(node, 0),)) for node in nodes], 2, least_yield_frac=least, virtual_time_s=virtual_s)
    states = [JobState.WAITING if node < 0 else JobState.RUNNING for node in nodes]
    more = {} if cost is None else {"move_cost_s": np.array(cost)}
    seen = replace(
        seen, state=np.array(states, dtype=np.int8), task_node=np.array(nodes), mem_req_frac=np.array(memory), **more
    )
    found = parse(f"/per/OPT=MIN/LEAST=jobs{suffix}").decide(seen, PASS)
    used = [0.0, 0.0]
    for node, share, promise in zip(found.task_node, found.yield_frac, least, strict=True):
        if node >= 0:
            assert share >= promise - 1e-9
            assert share > 0.0
            used[node] += share
    assert max(used) <= 1.0 + 1e-9


def test_jobs_that_can_never_be_guaranteed_their_yield_are_refused() -> None:
    policy = parse(f"{BASE}/LEAST=jobs")
    assert can_ever_run(policy, Job(1, 0.0, 4, 0.5, 0.1, 9.0, least_yield_frac=0.9), 2)
    assert not can_ever_run(policy, Job(1, 0.0, 5, 0.5, 0.1, 9.0, least_yield_frac=0.9), 2)
    assert can_ever_run(parse(BASE), Job(1, 0.0, 5, 0.5, 0.1, 9.0, least_yield_frac=0.9), 2)


JOBS = st.lists(
    st.tuples(
        st.integers(0, 2000), st.integers(1, 4), st.sampled_from((0.25, 0.5, 1.0)), st.sampled_from((0.1, 0.3, 0.6)),
        st.integers(1, 3000), st.sampled_from((0.5, 1.0, 4.0)), st.sampled_from((0.0, 0.0, 0.3, 0.5, 0.9)),
    ),
    min_size=1, max_size=8,
)  # fmt: skip
BASES = (BASE, "GreedyPM */per/OPT=MIN/MINVT=600", "/per/OPT=MIN")
SUFFIXES = ("/WEIGHTS=jobs", "/LEAST=jobs", "/DECAY=600", "/WEIGHTS=jobs/LEAST=jobs/DECAY=600")


def made(rows: list[tuple[int, int, float, float, int, float, float]], *, equal: bool = False) -> list[Job]:
    return [
        Job(
            number, float(submit), tasks, need, memory, float(run), weight=1.0 if equal else weight,
            least_yield_frac=0.0 if equal else least,
        )
        for number, (submit, tasks, need, memory, run, weight, least) in enumerate(sorted(rows))
    ]  # fmt: skip


@settings(max_examples=40)
@given(JOBS, st.sampled_from(BASES), st.sampled_from(SUFFIXES))
def test_guarantees_are_kept_in_whole_runs(rows: list, base: str, suffix: str) -> None:
    jobs = made(rows)
    run = simulate(jobs, 4, parse(base + suffix), constant(60.0), debug=True, compiling=NEVER, record=True)
    if "LEAST" in suffix:
        for _, changed in run.decided():
            for each in changed:
                if each.nodes:
                    assert each.yield_frac >= jobs[each.row].least_yield_frac - 1e-9
        guaranteed = np.array([job.least_yield_frac > 0.0 for job in jobs])
        assert run.preemptions[guaranteed].sum() == 0


@settings(max_examples=40)
@given(JOBS, st.sampled_from(BASES), st.sampled_from(("/WEIGHTS=jobs", "/LEAST=jobs")))
def test_equal_weights_and_no_guarantees_are_max_min_fairness(rows: list, base: str, suffix: str) -> None:
    jobs = made(rows, equal=True)
    plain, other = (
        simulate(jobs, 4, parse(name), constant(0.0), debug=True, compiling=NEVER) for name in (base, base + suffix)
    )
    assert other.end_s == pytest.approx(plain.end_s, rel=1e-6)


@pytest.mark.skipif(not can_compile(), reason="numba is not installed")
def test_compiled_and_plain_agree_to_the_bit() -> None:
    draw = np.random.default_rng(5)
    jobs = [
        Job(n, float(t), int(draw.integers(1, 5)), float(draw.choice([0.25, 0.5, 1.0])), 0.1,
            float(draw.integers(1, 4000)), weight=float(draw.choice([0.5, 1.0, 4.0])),
            least_yield_frac=float(draw.choice([0.0, 0.2])))
        for n, t in enumerate(np.sort(draw.integers(0, 6000, 14)))
    ]  # fmt: skip
    policy = parse("GreedyPM */per/OPT=MIN/MINVT=600/WEIGHTS=jobs/LEAST=jobs/DECAY=3600")
    one, other = (simulate(jobs, 8, policy, constant(60.0), compiling=how) for how in (NEVER, AT_ONCE))
    assert one.end_s.tobytes() == other.end_s.tobytes()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("FCFS/WEIGHTS=jobs", "policy FCFS: expected WEIGHTS=, LEAST= and DECAY= after a DFRS policy"),
        ("/stretch-per/OPT=MAX/WEIGHTS=jobs", "expected after a policy with OPT=MIN"),
        ("Greedy */OPT=AVG/LEAST=jobs", "expected after a policy with OPT=MIN"),
        ("Greedy */OPT=MIN/DECAY=0", "'DECAY=0': expected after"),
        ("Greedy */OPT=MIN/WEIGHTS=users", "'WEIGHTS=users': expected after"),
    ],
)
def test_nonsense_is_refused(name: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        parse(name)
    assert message in str(refused.value)


def test_names_are_printed_as_they_are_parsed() -> None:
    name = "GreedyPM */per/OPT=MIN/WEIGHTS=jobs/LEAST=jobs/DECAY=3600/KNOWS=cost/MOVES=2"
    assert parse(name).name == name
    assert parse(name.casefold()).name == name


@given(
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from((0.25, 0.5, 1.0)), st.sampled_from((0.2, 0.5, 0.9)),
                       st.sampled_from((0.0, 0.3, 0.6, 0.99))), max_size=6),
    st.integers(1, 4),
)  # fmt: skip
def test_guarantees_that_fit_can_be_placed_and_too_much_is_refused(rows: list, nodes: int) -> None:
    jobs = [
        Job(number, 0.0, tasks, need, memory, 60.0, least_yield_frac=least)
        for number, (tasks, need, memory, least) in enumerate(rows)
    ]
    asked = [each for each in jobs if each.least_yield_frac]
    cpu = sum(each.tasks * each.cpu_need_frac * each.least_yield_frac for each in asked)
    memory = sum(each.tasks * each.mem_req_frac for each in asked)
    if guarantees_fit(jobs, nodes):
        assert cpu <= 0.99 * nodes + 1e-6
        assert memory <= nodes + 1e-6
    elif asked and max(cpu, memory) <= 0.5 * min(nodes, 1):
        raise AssertionError("half of a node would hold all")
