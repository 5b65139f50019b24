"""Optional dependencies: packages of the extras `query` and `report`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from testbed.errors import UserError

_PACKAGES: Final = {"query": ("polars",), "report": ("matplotlib", "polars", "jinja2")}


def missing(extra: str) -> list[str]:
    """Return the packages of an extra that are not installed."""
    return [name for name in _PACKAGES[extra] if find_spec(name) is None]


def need(extra: str, what: str) -> None:
    """Raise `UserError` if packages of an extra are not installed; `what` names the feature that needs them."""
    if absent := missing(extra):
        raise UserError(f"{what} need {' and '.join(absent)}: pip install 'dfrs-testbed[{extra}]'")
