"""The decision as a kernel: both forms give the same bits, and inactive rows do not matter."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.policies.policy_views import state_of, views

from testbed.scheduling.compiler import can_compile, compiled
from testbed.scheduling.policies import kernel_policy
from testbed.scheduling.policies.catalogue import available, parse
from testbed.scheduling.policies.decision import decide
from testbed.scheduling.policies.dfrs import DfrsPolicy
from testbed.scheduling.policies.loading import can_load, use_compiled
from testbed.scheduling.policies.state import Cluster, Jobs
from testbed.scheduling.policies.view import NOT_PLACED, JobState

POLICIES = [policy for policy in map(parse, available()) if isinstance(policy, DfrsPolicy)]
CASE = (views(), st.sampled_from(POLICIES))


@cache
def engine():
    """Compile once per process, as a live run does, and restore the twin afterwards."""
    use_compiled(POLICIES[0])
    kernel = kernel_policy._compiled.pop(decide)
    assert kernel is compiled(decide)
    return kernel


def asked(view, event):
    rows = [int(job_id) - 100 for job_id in event.submitted]
    everybody, new = np.arange(view.tasks.size), np.array(rows, dtype=np.int64)
    return view.time_s, everybody, new, bool(event.completed or event.changed), event.periodic


@pytest.mark.slow
@pytest.mark.skipif(not can_compile(), reason="numba, of the extra `simulate`, is not installed")
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(*CASE)
def test_twin_and_compiled_agree_in_every_bit(case, policy):
    kernel = engine()
    view, event = case
    jobs, twin = state_of(view)
    _, fast = state_of(view)
    decide(policy.rules, jobs, twin, *asked(view, event))
    kernel(policy.rules, jobs, fast, *asked(view, event))
    for field in ("running", "task_node", "yield_frac"):
        assert getattr(twin, field).tobytes() == getattr(fast, field).tobytes(), field

    expected = policy.decide(view, event)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(kernel_policy._compiled, decide, kernel)
        got = policy.decide(view, event)
    assert got.task_node.tobytes() == expected.task_node.tobytes()
    assert got.yield_frac.tobytes() == expected.yield_frac.tobytes()
    assert len(kernel.signatures) == 1, "compiled once: a policy's arguments have the prepared types"


@pytest.mark.long
@pytest.mark.skipif(not can_compile(), reason="numba, of the extra `simulate`, is not installed")
@pytest.mark.parametrize("name", [POLICIES[0].name, "GreedyPM */per/OPT=MIN/KNOWS=cost/NEEDS=discovered", "XGE"])
def test_live_decisions_of_all_kinds_of_policies_use_cached_machine_code(name):
    """The second process loads what the first one compiled."""
    program = (
        "from testbed.scheduling.compiler import compiled\n"
        "from testbed.scheduling.policies import kernel_policy\n"
        "from testbed.scheduling.policies.catalogue import parse\n"
        "from testbed.scheduling.policies.loading import can_load, use_compiled\n"
        f"policy = parse({name!r})\n"
        "cached = can_load(policy)\n"
        "use_compiled(policy)\n"
        "((kernel, machine_code),) = kernel_policy._compiled.items()\n"
        "assert machine_code is compiled(kernel)\n"
        "from support.policies.policy_views import Row, view_of\n"
        "from testbed.scheduling.policies.view import Event\n"
        "policy.decide(view_of([Row(1)], 2), Event(submitted=(100,), periodic=True))\n"
        "assert len(machine_code.signatures) == 1, 'views have the prepared types'\n"
        "print(cached, sum(machine_code.stats.cache_misses.values()))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
    again = subprocess.run([sys.executable, "-c", program], check=True, env=environment, capture_output=True, text=True)
    assert again.stdout.split() == ["True", "0"]
    assert not can_load(parse("FCFS"))
    use_compiled(parse("FCFS"))  # it has no kernel


@settings(max_examples=150)
@given(*CASE, st.randoms(use_true_random=False))
def test_rows_that_are_not_active_do_not_matter(case, policy, random):
    """The state of a whole trace, with jobs that have ended or will be submitted, gives the same result as the view."""
    view, event = case
    jobs, alone = state_of(view)
    decide(policy.rules, jobs, alone, *asked(view, event))
    time_s, _, new, freed, periodic = asked(view, event)

    active, rows = [], []  # rows of the whole state: the row of the view, or None for a job that is not in it
    for row in range(view.tasks.size):
        rows += [None] * random.randint(0, 2)
        active.append(len(rows))
        rows.append(row)
    rows += [None] * random.randint(0, 2)
    _, before = state_of(view)
    sizes = [2 if row is None else int(view.tasks[row]) for row in rows]
    offset = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def spread(column, other, kind):
        return np.array([other if row is None else column[row] for row in rows], dtype=kind)

    task_node = np.full(offset[-1], 10**9)  # an index without a node: reading it would raise
    for place, row in enumerate(rows):
        if row is not None:
            task_node[offset[place] : offset[place + 1]] = before.task_node[jobs.offset[row] : jobs.offset[row + 1]]
    table = Jobs(
        spread(jobs.submit_time_s, np.nan, np.float64),
        offset,
        spread(jobs.cpu_need_frac, np.nan, np.float64),
        spread(jobs.mem_req_frac, np.nan, np.float64),
        spread(jobs.weight, np.nan, np.float64),
        spread(jobs.least_yield_frac, np.nan, np.float64),
    )
    great = Cluster(
        view.node_available,
        spread(view.virtual_time_s, np.nan, np.float64),
        spread(before.running, True, np.bool_),
        task_node,
        spread(before.yield_frac, 7.0, np.float64),
    )
    whole = np.array(active, dtype=np.int64)
    decide(policy.rules, table, great, time_s, whole, whole[new], freed, periodic)
    for place, row in enumerate(rows):
        mine = great.task_node[offset[place] : offset[place + 1]].tolist()
        if row is None:
            assert great.running[place]
            assert great.yield_frac[place] == 7.0
            assert mine == [10**9] * 2
        else:
            assert great.running[place] == alone.running[row]
            assert great.yield_frac[place] == alone.yield_frac[row]
            assert mine == alone.task_node[jobs.offset[row] : jobs.offset[row + 1]].tolist()


@given(views())
def test_a_state_is_made_of_a_view(case):
    view, _ = case
    jobs, cluster = state_of(view)
    assert (cluster.running == (view.state == JobState.RUNNING)).all()
    assert ((cluster.task_node == NOT_PLACED) == ~np.repeat(cluster.running, np.diff(jobs.offset))).all()
