"""Commands are declared in `testbed.cli` and carried out in `testbed.cli.bodies`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module


def deferred(declaration: Callable[[], None]) -> Callable[..., object]:
    """Return a callback that calls the function of the same name in the module of the same name in `bodies`.

    The body's module is imported when the command is called: `--help` imports declarations alone, which need click and
    a few constants. So a body imports all that it needs at its top.
    """

    @wraps(declaration)
    def carry_out(**options: object) -> object:
        return body_of(declaration)(**options)

    return carry_out


def body_of(declaration: Callable[..., object]) -> Callable[..., object]:
    """Import and return the function that carries out a declared command; its parameters are those of the command."""
    module = import_module(f"testbed.cli.bodies.{declaration.__module__.rpartition('.')[2]}")
    body: Callable[..., object] = getattr(module, declaration.__name__)
    return body
