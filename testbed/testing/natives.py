"""Tests for drivers that implement `Natives`: programs run on the node itself, outside guests."""

from __future__ import annotations

from pathlib import Path

import pytest

from node_agent.drivers.protocol import DriverError
from testbed.testing.accuracy import Accuracy, Window
from testbed.testing.live import HANG_S
from testbed.testing.nodes import Node
from testbed.testing.suite import DriverSuite


class NativesConformance(DriverSuite):
    """Tests of `node_agent.drivers.protocol.Natives`."""

    def test_programs_run_on_the_node_itself(self, tmp_path: Path, accuracy: Accuracy) -> None:
        async def scenario(node: Node) -> None:
            alone, seconds, window = self.spec("x").program, 1.0, Window()
            free, capped = [await node.running_native.native(alone, seconds, cap_cores) for cap_cores in (0.0, 0.3)]
            for report, cap_cores in ((free, 1.0), (capped, 0.3)):
                assert report.elapsed_s >= seconds
                assert report.units > 0
                assert report.cpu_s > 0
                if "cap:duty" not in node.capabilities:  # this process enforces duty caps, and may be late
                    assert report.cpu_s <= cap_cores * report.elapsed_s + 0.1  # s: more than two quota periods can add
                accuracy.check(f"seconds, {cap_cores} cores", report.elapsed_s, seconds, 2 * seconds, window)
                cores = report.cpu_s / report.elapsed_s
                accuracy.check(f"cores of {cap_cores}", cores, 0.75 * cap_cores, cap_cores + 0.08, window)
            ratio = (capped.units / capped.cpu_s) / (free.units / free.cpu_s)
            assert 1 / 4 < ratio < 4, "a cap limits CPU time, and does not change the work done per second of CPU time"
            accuracy.check("units in a second of CPU time, with and without a cap", ratio, 0.67, 1.5, window)
            assert node.driver.sample() == []  # native programs are no guests
            assert node.driver_events == []
            with pytest.raises(DriverError, match="work units were done"):
                await node.running_native.native(self.spec("x", 0.05).program, HANG_S, 0.0)

        self.on_nodes(tmp_path, 1, scenario, "native")
        assert not [path for path in tmp_path.rglob("native-*") if path.is_dir()]

    def test_all_ranks_of_a_program_run_on_the_node_itself(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            report = await node.running_native.native(self.job(2)[0].program, 1.0, 0.0)
            assert report.units > 0
            assert report.elapsed_s >= 1.0
            assert node.driver.sample() == []  # native programs are no guests
            assert node.driver_events == []

        self.on_nodes(tmp_path, 1, scenario, "native", "mpi")
