"""Machine code for the decisions of live policies.

Plain kernels make the decisions until `use_compiled` is called, and need no compilation. Both forms produce the same
bits, so decisions do not depend on the form.
"""

from __future__ import annotations

import numpy as np

from testbed.scheduling.compiler import can_compile, compiled, is_cached
from testbed.scheduling.policies import kernel_policy
from testbed.scheduling.policies.kernel_policy import CompilablePolicy, JobColumns, first_argument, has_kernels
from testbed.scheduling.policies.state import Cluster, Jobs
from testbed.scheduling.policies.view import Policy


def can_load(policy: Policy) -> bool:
    """Whether the machine code of the kernel that decides is cached, so that `use_compiled` does not compile."""
    deciding = _deciding(policy)
    return deciding is not None and can_compile() and is_cached(deciding.kernels.decide)


def use_compiled(policy: Policy) -> None:
    """Compile the kernel that decides, or load its machine code, and use it for views from now on in this process.

    This may take a minute if nothing is cached: call it from another thread if decisions must not wait. Does nothing
    for a policy without kernels. Raises ImportError without numba.
    """
    deciding = _deciding(policy)
    if deciding is None:
        return
    kernel = compiled(deciding.kernels.decide)
    nobody = np.zeros(0, dtype=np.int64)
    jobs = Jobs(np.zeros(0), np.zeros(1, dtype=np.int64), *(np.zeros(0) for _ in range(4)))
    cluster = Cluster(np.ones(1, dtype=np.bool_), np.zeros(0), np.zeros(0, dtype=np.bool_), nobody.copy(), np.zeros(0))
    columns = JobColumns(np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.bool_), np.zeros(0), nobody.copy())
    kernel(first_argument(deciding, columns), jobs, cluster, 0.0, nobody, nobody, False, False)
    kernel_policy.decide_by(deciding.kernels.decide, kernel)


def _deciding(policy: Policy | None) -> CompilablePolicy | None:
    """Return the policy whose kernels decide, which a suffix may wrap; None if there are no kernels."""
    while policy is not None and not has_kernels(policy):
        policy = getattr(policy, "policy", None)
    return policy
