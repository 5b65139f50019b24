"""Policies that are kernels: refusals, and the same kernel deciding on views."""

from __future__ import annotations

import numpy as np
import pytest
from support.policies.policy_views import Row, places_of, view_of

from testbed.errors import UserError
from testbed.scheduling.compiler import kernel
from testbed.scheduling.policies.kernel_policy import KernelPolicy, Kernels, has_kernels, never_wakes
from testbed.scheduling.policies.placing import drop_lost, least_loaded, usage, waiting
from testbed.scheduling.policies.view import Event, Policy
from testbed.scheduling.policies.yields import max_min_yields


@kernel
def newcomers_only(rules, jobs, cluster, time_s, active, submitted, freed, periodic):
    drop_lost(jobs, cluster, active)
    cpu_frac, mem_frac = usage(active, jobs, cluster)
    for row in submitted if rules else waiting(active, cluster):
        least_loaded(row, jobs, cluster, cpu_frac, mem_frac)
    max_min_yields(active, jobs, cluster)


def test_the_kernel_decides_on_views() -> None:
    policy: Policy = KernelPolicy("Newcomers", Kernels(newcomers_only), rules=(True,), period_s=60.0)
    assert has_kernels(policy)
    view = view_of([Row(1, mem=0.6, nodes=(1,)), Row(1, mem=0.6), Row(2, mem=0.6), Row(1, mem=0.6)], 2)
    decision = policy.decide(view, Event(submitted=(102, 103)))
    assert places_of(decision, view) == [[1], [], [], [0]]
    assert decision.yield_frac.tolist() == [1.0, 0.0, 0.0, 1.0]
    assert view.task_node.tolist() == [1, -1, -1, -1, -1]
    assert (policy.period_s, policy.needs_estimates) == (60.0, False)
    assert policy.can_ever_run(4, 0.5, 2)
    assert not policy.can_ever_run(5, 0.5, 2)
    assert policy.kernels.next_wake_s(policy.rules, None, None, 0.0, np.zeros(0)) == np.inf
    with pytest.raises(ValueError, match="submitted job 555: 0 rows in the view"):
        policy.decide(view, Event(submitted=(555,)))


def test_a_function_that_is_not_marked_is_refused() -> None:
    with pytest.raises(UserError, match=r"policy Mine: decide = .*<lambda>: expected a function marked with testbed"):
        KernelPolicy("Mine", Kernels(lambda *_: None))
    with pytest.raises(UserError, match="policy Mine: next_wake_s = "):
        KernelPolicy("Mine", Kernels(newcomers_only, lambda *_: 0.0))
    assert KernelPolicy("Mine", Kernels(newcomers_only, never_wakes)) == KernelPolicy("Mine", Kernels(newcomers_only))
