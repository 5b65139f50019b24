"""The probe of cores: quick, and told with every sample of a real node."""

import time

from node_agent.speed import SpeedProbe
from node_agent.telemetry import NodeSampler


def test_a_sample_tells_how_fast_a_core_is():
    sampler = NodeSampler("n0", "boot", time.monotonic, SpeedProbe())
    speeds = [sampler.sample(()).core_units_per_s for _ in range(3)]
    assert min(speeds) > 100  # units are made to take between a microsecond and a millisecond


def test_the_probe_takes_little_time_of_a_core():
    probe = SpeedProbe()
    probe.units_per_s()
    begin_ns = time.thread_time_ns()
    for _ in range(10):
        probe.units_per_s()
    assert (time.thread_time_ns() - begin_ns) / 10 < 20e6  # 0.6 ms where cores are as they should be


def test_without_a_probe_nothing_is_told():
    assert NodeSampler("n0", "boot", time.monotonic).sample(()).core_units_per_s == 0.0
