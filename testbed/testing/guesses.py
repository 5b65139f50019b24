"""Tests for drivers that implement `GuessesWaits`: estimates of waits for other ranks from network traffic."""

from __future__ import annotations

from pathlib import Path

import pytest

from node_agent.drivers.protocol import DriverError
from testbed.testing.live import until
from testbed.testing.nodes import Node
from testbed.testing.suite import DriverSuite


class GuessesConformance(DriverSuite):
    """Tests of `node_agent.drivers.protocol.GuessesWaits`."""

    def test_a_rank_with_less_work_waits_for_the_other(self, tmp_path: Path) -> None:
        async def scenario(one: Node, two: Node) -> None:
            specs = self.job(2, imbalance="1/i", message_bytes=5000, units_per_iteration=self.units_a_second)
            await self.start_job([(one, specs[0]), (two, specs[1])])
            assert two.guessed_waits_s(specs[1].guest) == ()
            addresses = [spec.address for spec in specs]
            for wrong in (addresses[:1], [*addresses, "10.77.9.9/16"], [addresses[0], "nowhere"]):
                with pytest.raises(DriverError, match="addresses"):
                    await two.guessing.guess_waits(specs[1].guest, wrong)
            with pytest.raises(DriverError, match="guest nobody"):
                await two.guessing.guess_waits("nobody", addresses)
            await two.guessing.guess_waits(specs[1].guest, addresses)
            assert len(two.guessed_waits_s(specs[1].guest)) == 2
            await until(lambda: two.guessed_waits_s(specs[1].guest)[0] > 1.0, "a guess of waits for the first rank")
            assert two.guessed_waits_s(specs[1].guest)[1] == 0, "no rank waits for itself"

        self.on_nodes(tmp_path, 2, scenario, "traffic", "mpi")
