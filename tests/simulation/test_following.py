"""Recorded decisions are followed exactly as the event loop follows its own, which is the reference."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.policies.view import ClusterView, Decision, Event, Floats, Policy
from testbed.scheduling.simulation.following import Follower
from testbed.scheduling.simulation.overheads import Overheads, constant
from testbed.scheduling.simulation.progress import Progress
from testbed.scheduling.simulation.simulate import simulate
from testbed.scheduling.simulation.speeds import NodeSpeeds
from testbed.scheduling.workload.jobs import Job

NODES = 4
POLICIES = ("FCFS", "Greedy */OPT=MIN", "GreedyP */OPT=MIN", "/per/OPT=MIN/MINVT=600", "/stretch-per/OPT=MAX/MINVT=600")
BEYOND = replace(
    constant(40.0), start_s=np.array([[20.0]]), save_s=np.array([[15.0]]), migration_s=np.array([[55.0]]),
    per_node=True,
)  # fmt: skip
BENT = replace(constant(10.0), progress=Progress(np.array([0.25, 1.0]), np.array([0.2, 1.0]), np.array([0.1, 1.0])))


@dataclass
class Recorder:
    """A policy that records its views and decisions."""

    policy: Policy
    asked: list[tuple[ClusterView, Event, Decision]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def needs_estimates(self) -> bool:
        return self.policy.needs_estimates

    @property
    def period_s(self) -> float | None:
        return self.policy.period_s

    def can_ever_run(self, tasks: int, mem_req_frac: float, nodes: int) -> bool:
        return self.policy.can_ever_run(tasks, mem_req_frac, nodes)

    def decide(self, view: ClusterView, event: Event) -> Decision:
        answer = self.policy.decide(view, event)
        self.asked.append((view, event, answer))
        return answer


def recorded(
    jobs: list[Job], policy: str, overheads: Overheads, speeds: NodeSpeeds | None
) -> list[tuple[ClusterView, Event, Decision]]:
    recorder = Recorder(parse(policy))
    simulate(jobs, NODES, recorder, overheads, speeds=speeds, node_memory_gb=8.0)
    return recorder.asked


def followed(
    jobs: list[Job], policy: str, overheads: Overheads, speeds: NodeSpeeds | None,
    asked: list[tuple[ClusterView, Event, Decision]],
) -> list[Floats]:  # fmt: skip
    """Return the expected virtual times at each decision except the first."""
    follower = Follower(jobs, NODES, parse(policy), overheads, node_memory_gb=8.0, speeds=speeds)
    expected = []
    for number, (view, _, answer) in enumerate(asked):
        if number:
            expected.append(follower.virtual_time_s(view))
        follower.take(view, answer)
    return expected


JOBS = st.lists(
    st.tuples(
        st.integers(0, 2000), st.integers(1, NODES), st.sampled_from((0.25, 0.5, 1.0)),
        st.sampled_from((0.1, 0.3, 0.6)), st.integers(1, 3000),
    ),
    min_size=1, max_size=8,
)  # fmt: skip
SPEEDS = st.none() | st.lists(st.floats(0.2, 2.0), min_size=NODES, max_size=NODES).map(
    lambda row: NodeSpeeds(np.array([0.0, 500.0]), np.array([[1.0] * NODES, row]))
)


@given(JOBS, st.sampled_from(POLICIES), st.sampled_from((constant(60.0), BEYOND, BENT)), SPEEDS)
def test_what_is_expected_of_its_own_decisions_is_what_the_loop_does(
    rows: list, policy: str, overheads: Overheads, speeds: NodeSpeeds | None
) -> None:
    jobs = [
        Job(number, float(submit), tasks, need, memory, float(run))
        for number, (submit, tasks, need, memory, run) in enumerate(sorted(rows))
    ]
    asked = recorded(jobs, policy, overheads, speeds)
    expected = followed(jobs, policy, overheads, speeds, asked)
    assert len(expected) == len(asked) - 1
    for (view, _, _), virtual_s in zip(asked[1:], expected, strict=True):
        assert virtual_s == pytest.approx(view.virtual_time_s, rel=1e-9, abs=1e-6)


def test_measured_progress_counts_from_the_next_step_on() -> None:
    """Job 1 is 30 s behind at 100 s, when job 2 is submitted; at 300 s the model still has it 30 s behind."""
    jobs = [Job(1, 0.0, 1, 0.5, 0.1, 1000.0), Job(2, 100.0, 1, 0.5, 0.1, 1000.0), Job(3, 300.0, 1, 0.5, 0.1, 9.0)]
    asked = recorded(jobs, "Greedy */OPT=MIN", constant(0.0), None)[:3]
    assert [view.time_s for view, _, _ in asked] == [0.0, 100.0, 300.0]
    view, event, answer = asked[1]
    behind = view.virtual_time_s - np.array([30.0, 0.0])
    late = [asked[0], (replace(view, virtual_time_s=behind), event, answer), asked[2]]
    first, second = followed(jobs, "Greedy */OPT=MIN", constant(0.0), None, late)
    assert first == pytest.approx([100.0, 0.0])
    assert second == pytest.approx([270.0, 200.0, 0.0])
