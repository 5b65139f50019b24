"""Hardware-in-the-loop testbed for cluster scheduling research."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testbed.errors import InputError, RunError, TestbedError, UserError
    from testbed.lab.blocking import BlockingLab, BlockingLabJob
    from testbed.lab.job import LabJob
    from testbed.lab.lab import Lab
    from testbed.lab.opening import open_lab
    from testbed.run.history import History
    from testbed.scheduling.policies.view import (
        NOT_PLACED,
        ClusterView,
        Decision,
        Event,
        JobState,
        Policy,
        WakingPolicy,
    )
    from testbed.scheduling.workload.jobs import Job
    from testbed.scheduling.workload.trace import load_trace
    from testbed.study.analysis.run_directory import Run
    from testbed.study.analysis.simulation import Simulation, simulate

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
    "ClusterView": "testbed.scheduling.policies.view",
    "Decision": "testbed.scheduling.policies.view",
    "Event": "testbed.scheduling.policies.view",
    "History": "testbed.run.history",
    "InputError": "testbed.errors",
    "Job": "testbed.scheduling.workload.jobs",
    "JobState": "testbed.scheduling.policies.view",
    "Lab": "testbed.lab.lab",
    "LabJob": "testbed.lab.job",
    "NOT_PLACED": "testbed.scheduling.policies.view",
    "Policy": "testbed.scheduling.policies.view",
    "Run": "testbed.study.analysis.run_directory",
    "RunError": "testbed.errors",
    "Simulation": "testbed.study.analysis.simulation",
    "TestbedError": "testbed.errors",
    "UserError": "testbed.errors",
    "WakingPolicy": "testbed.scheduling.policies.view",
    "load_trace": "testbed.scheduling.workload.trace",
    "open_lab": "testbed.lab.opening",
    "simulate": "testbed.study.analysis.simulation",
}
"""Modules of the public names; each is imported on the first access to its name, so that `import testbed` is fast."""


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
