"""Tasks that divide the CPU of their job, in virtual time: cases by hand, and random ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.errors import UserError
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.simulation import dividing
from testbed.scheduling.simulation.overheads import constant
from testbed.scheduling.simulation.overheads_parser import parse_overheads
from testbed.scheduling.simulation.ranks import SharingModel
from testbed.scheduling.simulation.simulate import simulate
from testbed.scheduling.workload.jobs import Job
from testbed.shares.formulas import shares_of

GREEDY = "GreedyPM */per/OPT=MIN/MINVT=600"
LINE = SharingModel(("linear",), "1/i")
MODES = ("dps", "dps/distributed")


def run(jobs, nodes, within="dps", policy=GREEDY, model=LINE, **options):
    suffix = f"/WITHIN={within}" if within else ""
    return simulate(jobs, nodes, parse(policy + suffix), sharing=model, debug=True, **options)


@pytest.mark.parametrize(("mode", "least"), [("dps", 0.85), ("dps/distributed", 0.8)])
def test_a_job_alone_comes_near_to_what_a_perfect_division_would_give(mode, least):
    """Four tasks with work 1, 1/2, 1/3, 1/4 and caps of 0.2: divided by their work they would take 52 % of the time."""
    job = Job(1, 0.0, 4, 0.2, 0.2, 1000.0)
    assert run([job], 4, "", "Greedy */OPT=MIN").end_s[0] == 1000.0
    perfect = (1 + 1 / 2 + 1 / 3 + 1 / 4) / 4
    assert perfect < run([job], 4, mode, "Greedy */OPT=MIN").end_s[0] / 1000.0 < perfect / least


@pytest.mark.parametrize("mode", MODES)
def test_equal_tasks_have_nothing_to_divide(mode):
    jobs = [Job(1, 0.0, 4, 0.5, 0.2, 1000.0), Job(2, 10.0, 4, 1.0, 0.2, 500.0), Job(3, 50.0, 2, 1.0, 0.2, 300.0)]
    plain, divided = (run(jobs, 4, within, model=SharingModel()) for within in ("", mode))
    assert divided.end_s == pytest.approx(plain.end_s)
    assert divided.decisions == plain.decisions


def test_a_task_with_all_of_its_node_cannot_have_more():
    assert run([Job(1, 0.0, 4, 1.0, 0.2, 1000.0)], 4).end_s[0] == 1000.0


def test_the_exchange_waits_for_the_first_work_after_a_resume():
    """After a penalty of 200 s the caps are equal again, and move as they did after the start."""
    job = Job(1, 0.0, 4, 0.2, 0.6, 1000.0)
    jobs = [job, Job(2, 100.0, 4, 0.5, 0.6, 50.0)]  # does not fit beside it, and has more priority
    found = run(jobs, 4, policy="GreedyP */OPT=MIN", overheads=constant(200.0))
    alone = run([job], 4, policy="GreedyP */OPT=MIN")
    assert found.preemptions.tolist() == [1, 0]
    begins_anew_s = 1000.0 - alone.end_s[0]
    lost_s = found.end_s[1] - 100.0 + 200.0
    assert alone.end_s[0] + lost_s < found.end_s[0] < alone.end_s[0] + lost_s + begins_anew_s


def test_measured_rates_of_equal_caps_say_nothing_of_unequal_ones(tmp_path):
    file = tmp_path / "model.toml"
    file.write_text(
        "[overheads]\nmemory_gb = [1.0]\nresume_s = [[1.0]]\nmigration_s = [[1.0]]\n[overheads.progress]\n"
        "yield_frac = [0.5, 1.0]\nserial = [0.4, 1.0]\nparallel = [0.3, 1.0]\n"
    )
    with pytest.raises(UserError, match=r"WITHIN=dps: the overheads have measured rates"):
        run([Job(1, 0.0, 2, 0.2, 0.2, 10.0)], 2, overheads=parse_overheads(str(file)))


ROWS = st.lists(
    st.tuples(
        st.integers(0, 300), st.integers(1, 4), st.sampled_from([0.1, 0.25, 0.5, 1.0]),
        st.sampled_from([0.1, 0.3, 0.45]), st.integers(1, 900),
    ),
    min_size=1, max_size=8,
)  # fmt: skip


@settings(deadline=None, max_examples=50)
@given(ROWS, st.sampled_from(MODES), st.sampled_from(["linear", "ring", "all-to-all", "tree", "mesh"]))
def test_jobs_get_no_more_than_the_policy_gave_them_and_nodes_no_more_than_they_have(rows, mode, topology):
    jobs = [
        Job(number, float(submit), tasks, need, memory, float(length))
        for number, (submit, tasks, need, memory, length) in enumerate(sorted(rows), start=1)
    ]
    seen = []

    class Watched(dividing.Dividing):
        def _set_speeds(self, now_s):
            super()._set_speeds(now_s)
            booked = np.zeros(3)
            for life in self.lives.values():
                seen.append(life)
                assert sum(life.force) <= life.base * len(life.nodes)
                assert life.rate >= life.yield_frac * (1 - 1e-6)  # no job is slower than with equal caps
                np.add.at(booked, list(life.nodes), life.force)
            assert (booked <= shares_of(1.0) + len(jobs)).all()  # each task's cap may be rounded

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("testbed.scheduling.simulation.loop.Dividing", Watched)
        found = run(jobs, 3, mode, model=SharingModel((topology,), "1/i"), overheads=constant(5.0))
    assert seen
    assert np.isfinite(found.end_s).all()
    assert found.virtual_time_s.tolist() == found.run_time_s.tolist()


@pytest.mark.parametrize("mode", MODES)
def test_shares_follow_work_that_moves_on(mode):
    """The work moves on after 100 s of virtual time; the task with the most work then has the most."""
    seen = []
    model = SharingModel(
        ("linear",),
        "drift:200",
        iteration_s=0.5,
        watch=lambda now_s, _row, _done_s, shares: seen.append((now_s, list(shares))),
    )
    found = run([Job(1, 0.0, 4, 0.2, 0.2, 390.0)], 4, mode, "Greedy */OPT=MIN", model)
    assert (found.end_s < found.run_time_s).all()
    assert all(sum(shares) <= 0.8 + 1e-9 for _, shares in seen)
    heaviest = [int(np.argmax(shares)) for _, shares in seen if max(shares) > 1.2 * sorted(shares)[-2]]
    assert list(dict.fromkeys(heaviest)) == [0, 1, 2, 3]
    assert seen[0] == (0.0, pytest.approx([0.2] * 4))


def test_a_move_of_the_work_costs_what_equal_caps_would_cost_until_shares_follow():
    job, ends = Job(1, 0.0, 4, 0.2, 0.2, 1000.0), []
    for imbalance in ("1/i", "drift:500", "drift:100"):
        model = SharingModel(("linear",), imbalance, iteration_s=0.5)
        ends.append(float(run([job], 4, "dps", "Greedy */OPT=MIN", model).end_s[0]))
    assert ends == sorted(ends)
    assert len({*ends, job.run_time_s}) == 4
    assert max(*ends, job.run_time_s) == job.run_time_s
