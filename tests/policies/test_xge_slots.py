"""The active slot of a node, by the jobs on it."""

from __future__ import annotations

import pytest

from testbed.scheduling.policies.xge_slots import (
    CHANGING,
    IDLE,
    LENT,
    PARALLEL,
    SERIAL,
    TAKEN,
    Partitions,
    partitions_of,
)

RUNS, STANDS = (False, True), (False, False)  # serial jobs, as (is parallel, runs)


@pytest.mark.parametrize(
    ("tasks", "at_home", "elsewhere"),
    [
        ([], IDLE, IDLE),
        ([RUNS], LENT, SERIAL),
        ([RUNS, STANDS], LENT, SERIAL),
        ([STANDS, STANDS], CHANGING, CHANGING),
        ([(True, False)], CHANGING, CHANGING),
        ([(True, True)], PARALLEL, TAKEN),
        ([STANDS, (True, True)], PARALLEL, TAKEN),
        ([STANDS, (True, False)], CHANGING, CHANGING),
    ],
)
def test_a_slot_is_active_when_a_task_of_its_kind_runs(tasks, at_home, elsewhere):
    partitions = Partitions(2)
    assert [partitions.slot(node, tasks) for node in (0, 1)] == [at_home] * 2
    assert [partitions.slot(node, tasks) for node in (2, 3)] == [elsewhere] * 2
    assert [partitions.home(node) for node in range(4)] == [PARALLEL, PARALLEL, SERIAL, SERIAL]


@pytest.mark.parametrize(
    ("policy", "nodes", "parallel"),
    [("XGE", 4, 2), (" xge / parallel=0.25/LONG=60", 8, 2), ("XGE/LEND=no/PARALLEL=1", 3, 3), ("XGE/PARALLEL=0", 3, 0)],
)
def test_the_policy_says_how_many_nodes_are_the_parallel_partition(policy, nodes, parallel):
    assert partitions_of(policy, nodes) == Partitions(parallel)


@pytest.mark.parametrize("policy", ["", "EASY", "DPS/bank", "XGE/OTHER=1", "XGE2", "no such/policy"])
def test_other_policies_have_no_partitions(policy):
    assert partitions_of(policy, 4) is None
