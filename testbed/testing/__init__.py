"""The conformance suite for authors of drivers: inherit from `DriverConformance`. It needs the extra `check`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testbed.testing.conformance import DriverConformance

__all__ = ["DriverConformance"]

_ASSERTING = ("core", "saves", "migrates", "joins", "natives", "nodes", "suite", "accuracy", "live")


def __getattr__(name: str) -> object:
    """Import the suite on first use: pytest is no requirement of the testbed itself."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import pytest  # noqa: PLC0415  # see above
    except ModuleNotFoundError as error:
        raise ImportError(f"{__name__}.{name} needs pytest: expected pip install 'dfrs-testbed[check]'") from error
    # with this, failed assertions of these modules show their values, as in test modules
    pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in _ASSERTING))
    return importlib.import_module(f"{__name__}.conformance").DriverConformance
