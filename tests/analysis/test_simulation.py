"""`simulate`: the same figures as `testbed simulate`, from files or jobs, and from names or policies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from testbed import Job, RunError, UserError, load_trace, simulate
from testbed.cli.simulate import simulate as command
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.simulation.overheads import constant
from testbed.scheduling.workload.trace import save_trace

POLICY = "GreedyPM */per/OPT=MIN/MINVT=600"
JOBS = [
    Job(job_id, 60.0 * job_id, 1 + job_id % 3, 0.5 if job_id % 2 else 1.0, 0.3, 100.0 + 400.0 * (job_id % 4))
    for job_id in range(1, 15)
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    save_trace(tmp_path / "trace.csv", JOBS)
    return tmp_path / "trace.csv"


def _figures(result: object) -> dict[str, float | None]:
    return {name: value for name, value in result.items() if not name.startswith("decide_")}


@pytest.mark.parametrize("policy", ["EASY", "FCFS", POLICY])
def test_the_figures_are_those_of_the_command(trace: Path, policy: str) -> None:
    words = [str(trace), "--nodes", "4", "--policy", policy, "--overheads", "constant:120", "--no-compile", "--json"]
    done = CliRunner().invoke(command, words, catch_exceptions=False)
    expected = json.loads(done.stdout)[policy]
    found = simulate(trace, policy, nodes=4, overheads="constant:120", compile_kernels=False)
    assert _figures(found.measures.as_dict()) == _figures(expected)


def test_files_jobs_names_policies_and_models_are_all_the_same(trace: Path) -> None:
    expected = simulate(trace, POLICY, nodes=4, overheads=30, compile_kernels=False)
    for jobs, policy, overheads in (
        (str(trace), POLICY, 30.0),
        (load_trace(trace), parse(POLICY), constant(30)),
        (tuple(JOBS), POLICY, "constant:30"),
    ):
        found = simulate(jobs, policy, nodes=4, overheads=overheads, compile_kernels=False, check=True)
        assert found.jobs.equals(expected.jobs)


def test_a_bound_that_is_known_is_used(trace: Path) -> None:
    first = simulate(trace, "EASY", nodes=4, compile_kernels=False)
    again = simulate(trace, "FCFS", nodes=4, bound=first.measures.bound, compile_kernels=False)
    assert again.measures.degradation == again.measures.max_stretch / first.measures.bound
    assert simulate(trace, "FCFS", nodes=4, bound=None, compile_kernels=False).measures.degradation is None


def test_jobs_have_one_row_each(trace: Path) -> None:
    found = simulate(trace, "EASY", nodes=4, compile_kernels=False)
    assert found.jobs["job_id"].to_list() == [job.job_id for job in JOBS]
    assert found.jobs["stretch"].max() == found.measures.max_stretch


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"nodes": 0}, "nodes = 0: expected from 1 to"),
        ({"period_s": 0.0}, "period_s = 0: expected seconds"),
        ({"tau_s": float("nan")}, "tau_s = nan: expected seconds"),
        ({"node_memory_gb": 0.0}, "node_memory_gb = 0: expected GB"),
        ({"policy": "EASYY"}, "nearest: EASY"),
        ({"overheads": "constnat:3"}, "nearest: constant"),
        ({"overheads": -1}, "a rescheduling penalty of -1 s"),
        ({"trace": "no.csv"}, "no.csv"),
        ({"trace": []}, "0 jobs on 4 nodes"),
        ({"trace": list(reversed(JOBS))}, "sort jobs by submit time"),
    ],
)
def test_mistakes_are_told_in_one_line(changed: dict, words: str, trace: Path) -> None:
    options = {"trace": trace, "policy": POLICY, "nodes": 4, **changed}
    with pytest.raises(UserError, match=words) as caught:
        simulate(**options)
    assert "\n" not in str(caught.value)


class _Lazy:
    """A policy that never runs a job."""

    name, needs_estimates, period_s = "<Lazy>", False, None

    def can_ever_run(self, tasks: int, mem_req_frac: float, nodes: int) -> bool:
        return True

    def decide(self, view: object, event: object) -> object:
        import numpy as np

        from testbed import NOT_PLACED, Decision

        return Decision(np.full(int(view.tasks.sum()), NOT_PLACED), np.zeros(len(view.job_id)))


def test_a_policy_that_never_runs_a_job_fails() -> None:
    with pytest.raises(RunError):
        simulate(JOBS, _Lazy(), nodes=4)


def test_a_notebook_shows_the_measures_escaped(trace: Path) -> None:
    found = simulate(trace, "EASY", nodes=4, compile_kernels=False)
    assert "max_stretch" in found._repr_html_()
    object.__setattr__(found.outcome, "policy", "<b>")
    assert "<b>" not in found._repr_html_()
