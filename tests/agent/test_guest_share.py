"""The share of a process guest: a change by another program is reported once, and corrected."""

from __future__ import annotations

import asyncio

import pytest

from node_agent.drivers.caps.guest_share import GuestShare
from node_agent.drivers.protocol import DriverError, DriverEvent
from testbed.bus.guest_details import Drift, detail_of

NODE_CORES = 2.0


class Kernel:
    """Weights as a kernel keeps them; if `deaf`, the kernel ignores new weights."""

    def __init__(self) -> None:
        self.found: dict[str, float] = {}
        self.bounds: list[float] = []
        self.deaf = False

    async def bound(self, cores: float) -> None:
        self.bounds.append(cores)

    async def weigh(self, guest: str, part_frac: float) -> float:
        await asyncio.sleep(0)
        if not self.deaf:
            self.found[guest] = part_frac
        return self.found[guest]

    def weight(self, guest: str) -> float:
        return self.found[guest]


def share_of(weights: Kernel | None, told: list[DriverEvent]) -> GuestShare:
    return GuestShare("g", 0.5, NODE_CORES, weights, told.append)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_share_is_set_when_the_guest_enters_and_the_node_is_bounded() -> None:
    async def main() -> None:
        kernel = Kernel()
        share = share_of(kernel, [])
        assert share.in_force() is None
        assert await share.set(0.7) == 0.7  # the guest waits for its job
        assert kernel.found == {}
        await share.take()
        assert (kernel.found, kernel.bounds) == ({"g": 0.35}, [NODE_CORES])
        assert share.in_force() == pytest.approx(0.7)
        kernel.deaf = True
        with pytest.raises(DriverError, match=r"guest g: share 1\.0 cores was read back as 0\.7"):
            await share.set(1.0)

    asyncio.run(main())


def test_a_guest_boots_with_the_part_of_the_whole_node() -> None:
    async def main() -> None:
        kernel, told = Kernel(), []
        share = share_of(kernel, told)
        await share.boot()
        assert (kernel.found, kernel.bounds) == ({"g": 1.0}, [NODE_CORES])
        assert share.in_force() is None  # not its share
        share.look_after(share.in_force())
        assert await share.set(0.7) == 0.7
        assert kernel.found == {"g": 1.0}
        await share.take()
        assert kernel.found == {"g": 0.35}
        await settle()
        assert told == []

    asyncio.run(main())


def test_a_share_that_somebody_else_has_changed_is_told_once_and_set_again() -> None:
    async def main() -> None:
        kernel, told = Kernel(), []
        share = share_of(kernel, told)
        await share.take()
        share.look_after(share.in_force())
        await settle()
        assert told == []
        kernel.found["g"] = 0.9
        share.look_after(share.in_force())
        share.look_after(share.in_force())
        await settle()
        assert [(each.event, each.detail) for each in told] == [("drift", {"of": "share", "wanted": 0.5, "found": 1.8})]
        assert detail_of("drift", told[0].detail) == Drift(of="share", wanted=0.5, found=1.8)
        assert share.in_force() == pytest.approx(0.5)
        share.look_after(None)
        kernel.found.clear()
        assert share.in_force() is None

    asyncio.run(main())


def test_without_weights_there_are_no_shares() -> None:
    async def main() -> None:
        share = share_of(None, [])
        assert share.in_force() is None
        with pytest.raises(DriverError, match="guest g has a share: there are no weights here"):
            await share.take()

    asyncio.run(main())
