"""Choice of the mechanism that caps CPU time on this machine: the first that passes a trial."""

from __future__ import annotations

from node_agent.drivers.caps.cgroup import CgroupV1Caps, CgroupV2Caps
from node_agent.drivers.caps.duty import DutyCaps
from node_agent.drivers.caps.mounts import group_of
from node_agent.drivers.caps.protocol import Caps
from node_agent.drivers.protocol import DriverError

MECHANISMS = ("cgroup2", "cgroup1", "duty")


def _make(mechanism: str, group: str) -> Caps:
    """Return a mechanism that was not tried yet; raises `OSError` where the machine has no such thing."""
    if mechanism == "duty":
        return DutyCaps()
    kind = "cgroup2" if mechanism == "cgroup2" else "cgroup"
    own = group_of(kind)
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
