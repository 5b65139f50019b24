"""Installed drivers by name, and their declared traits, without a running agent."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import msgspec

from testbed.bus.messages import NodeFacts
from testbed.bus.traits import DriverTraits

GROUP = "testbed.drivers"
_UNKNOWN = DriverTraits()


def drivers() -> Mapping[str, EntryPoint]:
    """Return the entry points of all drivers that are installed here, by name."""
    return _drivers(tuple(sys.path))


@lru_cache(maxsize=4)
def _drivers(_path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def traits_of(driver: str) -> DriverTraits:
    """Return a driver's declared traits; the defaults for a driver that is installed only on other nodes."""
    point = drivers().get(driver)
    if point is None:
        return _UNKNOWN
    try:
        declared = point.load().traits
    except (ImportError, AttributeError):  # a plug-in without declarations, or whose dependencies only nodes have
        return _UNKNOWN
    return declared if isinstance(declared, DriverTraits) else _UNKNOWN


def traits_in(facts: NodeFacts) -> DriverTraits:
    """Return the traits of a node's driver; agents of earlier versions sent only the driver's name."""
    return traits_of(facts.driver) if facts.traits is None else facts.traits


def recorded_traits(facts: Mapping[str, Any]) -> DriverTraits:
    """Return the traits of a node's driver from the facts in a run's manifest, also an old one."""
    try:
        return msgspec.convert(facts["traits"], DriverTraits)
    except (KeyError, msgspec.ValidationError):
        return traits_of(str(facts.get("driver", "")))
