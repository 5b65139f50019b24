"""Drivers by name: those of this package, and plug-ins."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points

from node_agent.drivers.protocol import Driver
from testbed.errors import UserError


def make_driver(name: str, options: Mapping[str, str] | None = None) -> Driver:
    """Return a new driver by its entry point name (group `testbed.drivers`), made with `options` as its arguments.

    Raises `UserError` for a name or an option that is not known.
    """
    points = {point.name: point for point in entry_points(group="testbed.drivers")}
    if name not in points:
        raise UserError(f"driver {name!r}: expected one of {', '.join(sorted(points))}")
    factory: Callable[..., Driver] = points[name].load()
    options = options or {}
    known = sorted(inspect.signature(factory).parameters)
    for option in options:
        if option not in known:
            raise UserError(
                f"driver {name!r}: unknown option {option!r}: expected "
                + (f"one of {', '.join(known)}" if known else "none, as it has no options")
            )
    return factory(**options)
