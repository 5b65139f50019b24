"""The probe of cores: it is quick, and every sample of a real node has its result."""

import statistics
import time

from node_agent.programs.kernel import Kernel
from node_agent.speed import SpeedProbe
from node_agent.telemetry import NodeSampler


def test_a_sample_tells_how_fast_a_core_is():
    sampler = NodeSampler("n0", "boot", "clock", time.monotonic, SpeedProbe())
    speeds = [sampler.sample(()).core_units_per_s for _ in range(9)]
    kernel = Kernel(seed=1, rank=0, workers=1)
    begin_ns = time.thread_time_ns()
    kernel.run(2000)
    rate = 2000e9 / (time.thread_time_ns() - begin_ns)
    assert rate / 4 < statistics.median(speeds) < rate * 4


def test_the_probe_takes_little_time_of_a_core():
    probe, kernel = SpeedProbe(), Kernel(seed=1, rank=0, workers=1)
    taken = []
    for work in (probe.units_per_s, lambda: kernel.run(50)):  # half a millisecond to one on fast cores
        work()
        begin_ns = time.thread_time_ns()
        for _ in range(20):
            work()
        taken.append(time.thread_time_ns() - begin_ns)
    assert taken[0] < 5 * taken[1]


def test_without_a_probe_nothing_is_told():
    assert NodeSampler("n0", "boot", "clock", time.monotonic).sample(()).core_units_per_s == 0.0
