"""Which mechanism caps CPU time on this machine: the first that really works."""

from __future__ import annotations

from pathlib import Path

from node_agent.drivers.caps.cgroup1 import CgroupV1Caps
from node_agent.drivers.caps.cgroup2 import CgroupV2Caps
from node_agent.drivers.caps.duty import DutyCaps
from node_agent.drivers.caps.mounts import own_group
from node_agent.drivers.caps.protocol import Caps
from node_agent.drivers.protocol import DriverError

MECHANISMS = ("cgroup2", "cgroup1", "duty")


def _make(mechanism: str, group: str) -> Caps:
    """Return a mechanism that was not tried yet; raises `OSError` where the machine has no such thing."""
    if mechanism == "duty":
        return DutyCaps()
    kind = "cgroup2" if mechanism == "cgroup2" else "cgroup"
    own = own_group(
        kind,
        Path("/proc/self/mountinfo").read_text(encoding="utf-8"),
        Path("/proc/self/cgroup").read_text(encoding="utf-8"),
    )
    if own is None:
        raise FileNotFoundError(f"no {kind} hierarchy with a cpu controller is mounted")
    return CgroupV2Caps(own / group) if mechanism == "cgroup2" else CgroupV1Caps(own / group)


async def open_caps(group: str, forced: str | None) -> Caps:
    """Return the best mechanism that works, or the forced one, ready to use; raises `DriverError`.

    `group` names the control group that is made; everything in it belongs to the caller.
    """
    if forced is not None and forced not in MECHANISMS:
        raise DriverError(f"cap mechanism {forced!r}: expected one of {', '.join(MECHANISMS)}")
    tried: list[str] = []
    for mechanism in MECHANISMS if forced is None else (forced,):
        try:
            caps = _make(mechanism, group)
            try:
                await caps.open()
            except OSError:
                await caps.close()
                raise
        except OSError as error:
            tried.append(f"{mechanism}: {error}")
        else:
            return caps
    raise DriverError(f"no way to cap CPU time; {'; '.join(tried)}")
