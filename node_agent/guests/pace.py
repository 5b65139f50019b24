"""Programs' reports of their iterations, accumulated between two samples."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import msgspec

from testbed.bus.numbers import Amount
from testbed.bus.telemetry import Supersteps


def supersteps_of(told: Mapping[str, int | float], known: Supersteps | None) -> Supersteps | None:
    """Return the known iterations after a report of a program; `longest_s` stays until a sample resets it.

    A report without these fields changes nothing.
    """
    if not {"steps", "longest_s", "compute_s", "comm_s"} <= told.keys():
        return known
    return Supersteps(
        steps=int(told["steps"]),
        longest_s=max(float(told["longest_s"]), 0.0 if known is None else known.longest_s),
        compute_s=float(told["compute_s"]),
        comm_s=float(told["comm_s"]),
    )


def waits_of(told: Mapping[str, object], known: tuple[float, ...]) -> tuple[float, ...]:
    """Return the known waits after a report of a program: seconds by rank. Any other value changes nothing."""
    with contextlib.suppress(msgspec.ValidationError):
        return msgspec.convert(told.get("waits_s"), tuple[Amount, ...])
    return known
