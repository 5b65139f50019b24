"""Hardware-in-the-loop testbed for cluster scheduling research."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testbed.analysis.run_directory import Run
    from testbed.analysis.simulation import Simulation, simulate
    from testbed.errors import InputError, RunError, TestbedError, UserError
    from testbed.lab.blocking import BlockingLab, BlockingLabJob
    from testbed.lab.job import LabJob
    from testbed.lab.lab import Lab
    from testbed.lab.opening import open_lab
    from testbed.policies.view import NOT_PLACED, ClusterView, Decision, Event, JobState, Policy, WakingPolicy
    from testbed.run.history import History
    from testbed.workload.jobs import Job
    from testbed.workload.trace import load_trace

__version__ = "0.1.0"

__all__ = [
    "NOT_PLACED",
    "BlockingLab",
    "BlockingLabJob",
    "ClusterView",
    "Decision",
    "Event",
    "History",
    "InputError",
    "Job",
    "JobState",
    "Lab",
    "LabJob",
    "Policy",
    "Run",
    "RunError",
    "Simulation",
    "TestbedError",
    "UserError",
    "WakingPolicy",
    "load_trace",
    "open_lab",
    "simulate",
]

_EXPORTS = {
    "BlockingLab": "testbed.lab.blocking",
    "BlockingLabJob": "testbed.lab.blocking",
    "ClusterView": "testbed.policies.view",
    "Decision": "testbed.policies.view",
    "Event": "testbed.policies.view",
    "History": "testbed.run.history",
    "InputError": "testbed.errors",
    "Job": "testbed.workload.jobs",
    "JobState": "testbed.policies.view",
    "Lab": "testbed.lab.lab",
    "LabJob": "testbed.lab.job",
    "NOT_PLACED": "testbed.policies.view",
    "Policy": "testbed.policies.view",
    "Run": "testbed.analysis.run_directory",
    "RunError": "testbed.errors",
    "Simulation": "testbed.analysis.simulation",
    "TestbedError": "testbed.errors",
    "UserError": "testbed.errors",
    "WakingPolicy": "testbed.policies.view",
    "load_trace": "testbed.workload.trace",
    "open_lab": "testbed.lab.opening",
    "simulate": "testbed.analysis.simulation",
}
"""Modules of the public names; each is imported when the name is first asked for, so that `import testbed` is quick."""


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
