"""Speed of a lab's core in work units per second, measured by an agent; implausible rates are refused."""

from __future__ import annotations

from collections.abc import Mapping

from testbed.bus.limits import LEAST_UNITS_PER_CORE_S, MOST_UNITS_PER_CORE_S
from testbed.bus.messages import Calibrate
from testbed.errors import RunError
from testbed.lab.fleet import Fleet

_CPU_S = 0.5
_LEAST_DEADLINE_S = 20.0
_SLOWEST_FRAC = 0.1  # fraction of a core that the agent gets on a busy machine


async def measure_core(fleet: Fleet, command_s: float) -> float:
    """Let the first node measure the work units per second of a core."""
    deadline_s = _CPU_S / _SLOWEST_FRAC + max(_LEAST_DEADLINE_S, command_s)
    return core_rate(fleet.name(0), await fleet.call(0, Calibrate(cpu_s=_CPU_S), deadline_s))


def core_rate(node: str, reply: Mapping[str, object]) -> float:
    """Return work units per second of a core from a reply to `Calibrate`; raises `RunError` for an implausible rate."""
    return checked_rate(f"node {node}: its agent says units_per_core_s", reply.get("units_per_core_s"))


def checked_rate(what: str, value: object) -> float:
    """Return a plausible rate; for any other value raise `RunError`, whose text begins with `what`."""
    if isinstance(value, int | float) and LEAST_UNITS_PER_CORE_S <= value <= MOST_UNITS_PER_CORE_S:
        return float(value)
    bounds = f"{LEAST_UNITS_PER_CORE_S:g} to {MOST_UNITS_PER_CORE_S:g} work units a second"
    raise RunError(f"{what} = {value!r}: expected {bounds}")
