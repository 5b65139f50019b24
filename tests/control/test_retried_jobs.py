"""Jobs that a policy retries when others are submitted: live runs and simulations present them in the same order."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.control.rehearsal import rehearse

from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.simulation.compiling import NEVER
from testbed.scheduling.simulation.overheads import constant
from testbed.scheduling.simulation.simulate import simulate
from testbed.scheduling.workload.jobs import Job

# Job 2 waits from 1 s on and is retried at 3, 7, 15, 31, 63, 127 and 255 s; job 3 is submitted at the last retry.
# Job 1 has ended by then, so there is memory for one of the two.
BOTH_S = 255.0
JOBS = [Job(1, 0.0, 1, 1.0, 0.6, 130.0), Job(2, 1.0, 1, 1.0, 0.6, 60.0), Job(3, BOTH_S, 1, 1.0, 0.6, 60.0)]


def test_a_retried_job_comes_before_a_younger_one_in_the_simulation() -> None:
    run = simulate(JOBS, 1, parse("GREEDY"), constant(0.0), debug=True, compiling=NEVER)
    assert run.start_s[1] == BOTH_S
    assert run.start_s[2] > run.start_s[1]


def test_a_retried_job_comes_before_a_younger_one_live(tmp_path: Path) -> None:
    _, journal = rehearse(tmp_path, JOBS, count=1, policy="GREEDY", time_scale=60)
    decisions = [entry for entry in journal if entry["kind"] == "decision"]
    (both,) = [entry for entry in decisions if len(entry["event"]["submitted"]) == 2]
    assert both["view"]["time_s"] == pytest.approx(BOTH_S)
    assert both["view"]["job_id"] == [2, 3]
    assert both["event"]["submitted"] == [2, 3]
    assert both["decision"]["task_node"] == [0, -1]
