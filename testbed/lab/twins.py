"""Derives blocking twins of asynchronous classes, for notebooks, checks and other code without an event loop."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from testbed.lab.portal import Portal

_NONE: Mapping[type, type[Twin]] = {}


class Twin:
    """A wrapper whose methods run in the loop of `portal`, while the caller waits for their results.

    `original` is the asynchronous object; other threads must use it only through the portal.
    """

    def __init__(self, portal: Portal, original: Any) -> None:
        self.portal = portal
        self.original = original


def derive(name: str, original: type, twins: Mapping[type, type[Twin]] = _NONE) -> type[Twin]:
    """Return the blocking twin of a class: its public methods and properties, and its context if it has one.

    Returned objects of the classes in `twins` are wrapped in their twins.
    """
    members: dict[str, object] = {
        "__doc__": f"The blocking twin of `{original.__name__}`: each call returns when it has ended.",
        "__module__": Twin.__module__,
    }
    for key, member in vars(original).items():
        if key in ("__aenter__", "__aexit__"):
            members[key.replace("__a", "__")] = _blocking(member, twins)
        elif key.startswith("_"):
            continue
        elif isinstance(member, property):
            members[key] = property(functools.partial(_read, key), doc=member.__doc__)
        elif inspect.isfunction(member):
            members[key] = _blocking(member, twins)
    return type(name, (Twin,), members)


def _read(key: str, twin: Twin) -> object:
    return getattr(twin.original, key)


def _blocking(method: Callable[..., Any], twins: Mapping[type, type[Twin]]) -> Callable[..., object]:
    """Return the blocking form of a method, which always runs in the loop, whether it is a coroutine or not."""

    @functools.wraps(method)
    def call(self: Twin, *given: object, **named: object) -> object:
        async def work() -> object:
            found = method(self.original, *given, **named)
            return await found if inspect.iscoroutine(found) else found

        found = self.portal.call(work())
        if found is self.original:
            return self
        twin = twins.get(type(found))
        return found if twin is None else twin(self.portal, found)

    return call
