"""Commands that measure: samples of guests, programs outside guests, the speed of a core."""

from __future__ import annotations

from dataclasses import asdict

from node_agent.abilities import Abilities, meter_of
from node_agent.drivers.protocol import Driver, DriverError, Meters
from node_agent.watch import SetCap, check, watch
from testbed.bus.messages import MOST_NATIVE_RANKS, Calibrate, Native, Watch


async def measure(
    action: Watch | Native | Calibrate, driver: Driver, able: Abilities, set_cap: SetCap
) -> dict[str, object]:
    """Carry out a command that measures; returns the data of its reply. Raises `DriverError`."""
    if isinstance(action, Native):
        if action.program.ranks > MOST_NATIVE_RANKS:
            raise DriverError(f"native: {action.program.ranks} ranks: expected at most {MOST_NATIVE_RANKS}")
        return asdict(await able.running_native.native(action.program, action.seconds, action.cap_cores))
    if isinstance(action, Calibrate):
        return {"units_per_core_s": await driver.calibrate(action.cpu_s)}
    check(action)
    meters = {guest: meter_of(driver, guest) for guest in action.guests}
    in_loop = driver.traits.simulated or not isinstance(driver, Meters)
    return await watch(action, meters, set_cap, in_loop=in_loop)
