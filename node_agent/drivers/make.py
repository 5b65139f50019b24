"""Drivers by name: those of this package, and plug-ins."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from node_agent.drivers.builtin import BuiltInDriver
from node_agent.drivers.protocol import Driver
from testbed.bus.drivers import drivers, traits_of
from testbed.errors import UserError


def make_driver(name: str, options: Mapping[str, str] | None = None) -> Driver:
    """Return a new driver by its entry point name (group `testbed.drivers`), made with `options` as its arguments.

    Raises `UserError` for a name or an option that is not known, and for a driver whose dependencies are not installed.
    """
    points = drivers()
    if name not in points:
        raise UserError(f"driver {name!r}: expected one of {', '.join(sorted(points))}")
    try:
        found = points[name].load()
        factory: Callable[..., Driver] = found.load() if isinstance(found, BuiltInDriver) else found
    except ModuleNotFoundError as error:
        extra = traits_of(name).extra
        expected = f"pip install 'dfrs-testbed[{extra}]'" if extra else "the package that has it"
        raise UserError(f"driver {name!r}: {error}: expected {expected}") from error
    options = options or {}
    known = sorted(inspect.signature(factory).parameters)
    for option in options:
        if option not in known:
            raise UserError(
                f"driver {name!r}: unknown option {option!r}: expected "
                + (f"one of {', '.join(known)}" if known else "none, as it has no options")
            )
    return factory(**options)
