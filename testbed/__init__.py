"""Hardware-in-the-loop testbed for cluster scheduling research.

The public API is the names in `__all__`; docs/api.md describes them. A name is imported when it is first used, so
that `import testbed` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testbed.errors import RunError, TestbedError, UserError
    from testbed.lab.blocking import BlockingLab, BlockingLabJob
    from testbed.lab.job import LabJob
    from testbed.lab.lab import Lab
    from testbed.lab.opening import open_lab

__version__ = "0.1.0"

# One name per line, sorted, in both lists; tests/docs/test_api.py compares them with each other and the imports above.
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


def __getattr__(name: str) -> object:
    """Import a public name from its module; see PEP 562."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'testbed' has no attribute {name!r}")
    value: object = getattr(import_module(_EXPORTS[name]), name)
    globals()[name] = value  # the next use does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
