"""What programs tell of their iterations, added up between two samples."""

from __future__ import annotations

from collections.abc import Mapping

from testbed.bus.telemetry import Supersteps


def supersteps_of(told: Mapping[str, int | float], known: Supersteps | None) -> Supersteps | None:
    """Return what is known after a program has told more; `longest_s` stays until a sample sets it back.

    A program that does not tell changes nothing.
    """
    if not {"steps", "longest_s", "compute_s", "comm_s"} <= told.keys():
        return known
    return Supersteps(
        steps=int(told["steps"]),
        longest_s=max(float(told["longest_s"]), 0.0 if known is None else known.longest_s),
        compute_s=float(told["compute_s"]),
        comm_s=float(told["comm_s"]),
    )
