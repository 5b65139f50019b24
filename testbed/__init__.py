"""Hardware-in-the-loop testbed for cluster scheduling research."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testbed.errors import RunError, TestbedError, UserError
    from testbed.lab.blocking import BlockingLab, BlockingLabJob
    from testbed.lab.job import LabJob
    from testbed.lab.lab import Lab
    from testbed.lab.opening import open_lab

__version__ = "0.1.0"

__all__ = [
    "BlockingLab",
    "BlockingLabJob",
    "Lab",
    "LabJob",
    "RunError",
    "TestbedError",
    "UserError",
    "open_lab",
]

_EXPORTS = {
    "BlockingLab": "testbed.lab.blocking",
    "BlockingLabJob": "testbed.lab.blocking",
    "Lab": "testbed.lab.lab",
    "LabJob": "testbed.lab.job",
    "RunError": "testbed.errors",
    "TestbedError": "testbed.errors",
    "UserError": "testbed.errors",
    "open_lab": "testbed.lab.opening",
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
