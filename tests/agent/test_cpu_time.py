"""Work in CPU time: an iteration takes its time at any speed of the core, and the expected checksum stays known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.programs.cpu_time import CpuTimeFiller
from node_agent.programs.expected import expected_checksum, work_checksum
from node_agent.programs.kernel import Kernel
from node_agent.programs.task import Task
from node_agent.programs.words import seed_of
from testbed.bus.messages import NodeFacts
from testbed.bus.traits import DriverTraits
from testbed.control.admission import check_clock
from testbed.errors import UserError
from testbed.lab.guests import cpu_ns_of_unit, measure_of_work, prepare_jobs
from testbed.scenario.schema import Scenario
from testbed.scheduling.workload.jobs import Job

TASK = Task(
    guest="a", run="r", job=1, task=0, memory_mib=64, name="patterns", work_units=1000, units_per_iteration=70, seed=3,
    workers=1, rank=0, ranks=1, topology="ring", imbalance="uniform", message_bytes=64, cpu_ns_per_unit=12_500.0,
)  # fmt: skip


class Core:
    """A core with a clock of CPU time; each unit takes `ns_per_unit`."""

    def __init__(self, ns_per_unit: float) -> None:
        self.now_ns, self.done, self.largest = 0.0, 0, 0
        self._ns_per_unit = ns_per_unit

    def run(self, units: int) -> None:
        self.now_ns += units * self._ns_per_unit
        self.done += units
        self.largest = max(self.largest, units)

    def clock_ns(self) -> int:
        return int(self.now_ns)


@given(st.lists(st.integers(1, 400), min_size=1, max_size=30), st.floats(0.3, 3.9), st.floats(1_000.0, 100_000.0))
def test_iterations_take_the_cpu_time_of_their_units_on_any_core(
    iterations: list[int], slower: float, ns_per_unit: float
) -> None:
    """The next iteration compensates the excess of the last one, so the error does not grow with their number."""
    core = Core(slower * ns_per_unit)
    filler = CpuTimeFiller(core, ns_per_unit, core.clock_ns)
    for units in iterations:
        filler.run(units, lambda units=units: core.run(-(-units // 4)))
    budget_ns = sum(iterations) * ns_per_unit
    assert core.now_ns >= budget_ns - 1
    assert core.now_ns <= budget_ns + slower * ns_per_unit * core.largest + 1


@pytest.mark.parametrize(("imbalance", "rank", "workers"), [("uniform", 0, 1), ("1/i", 2, 2), ("drift:4", 1, 3)])
def test_the_checksum_counts_the_same_units_on_any_core(imbalance: str, rank: int, workers: int) -> None:
    one = replace(TASK, imbalance=imbalance, rank=rank, ranks=1 if imbalance == "uniform" else 3, workers=workers)
    alone = replace(one, rank=0, ranks=1, imbalance="uniform")
    kernel = Kernel(one.seed, one.rank, one.workers)
    for iteration in range(one.iterations):
        assert one.counted(iteration) == max(1, round(one.share(iteration) / 4))
        kernel.run(one.counted(iteration))
    if one.ranks == 1:
        assert expected_checksum(alone) == f"{seed_of(kernel.checksum(), 0):016x}"
    else:
        assert work_checksum(one) == kernel.checksum()


def test_units_of_work_are_all_counted() -> None:
    units = replace(TASK, cpu_ns_per_unit=0.0)
    assert [units.counted(iteration) for iteration in range(units.iterations)] == [70] * 14 + [20]


def scenario(work: str | None) -> Scenario:
    return Scenario.model_validate(
        {"name": "a", "policy": "FCFS", "workload": {"trace": "a.csv"}, "nodes": [{"name": "n"}],
         "programs": {"work": work, "iteration_s": 0.5}},
    )  # fmt: skip


def test_jobs_get_the_cpu_time_of_a_core_of_the_measured_speed() -> None:
    """An MPI job alone does 60,000 units per second on a core that can do 80,000: it has 3/4 of the time."""
    (job,) = prepare_jobs(
        [Job(1, 0.0, 2, 1.0, 0.2, 10.0)], scenario("cpu-time"), "r", 0.5, 1024, lambda _job: 60_000.0,
        iter(["10.77.0.1/16", "10.77.0.2/16"]), cpu_ns_per_unit=12_500.0,
    )  # fmt: skip
    program = job.specs[0].program
    assert cpu_ns_of_unit(scenario("cpu-time").programs, node(DriverTraits()), 80_000.0) == 12_500.0
    assert program.cpu_ns_per_unit == 12_500.0
    assert program.work_units * program.cpu_ns_per_unit / 1e9 == pytest.approx(10.0 * 0.5 * 60 / 80)


def node(traits: DriverTraits) -> NodeFacts:
    return NodeFacts(
        cpus=1.0, memory_mib=1024, machine_cores=2, machine_memory_mib=24_105, cpu_model="any", kernel="6",
        driver="any", capabilities=("start",), versions={}, address="192.0.2.7", image_port=4000,
        image_free_mib=1000, guest_floor_mib=64, programs=("eatcpu",), traits=traits,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("traits", "expected"),
    [(DriverTraits(), "cpu-time"), (DriverTraits(hypervisor="qemu"), "units"), (DriverTraits(simulated=True), "units")],
)
def test_work_is_cpu_time_by_default_where_programs_can_read_it(traits: DriverTraits, expected: str) -> None:
    facts = node(traits)
    assert measure_of_work(scenario(None).programs, facts) == expected
    assert measure_of_work(scenario("units").programs, facts) == "units"
    assert (cpu_ns_of_unit(scenario(None).programs, facts, 1e5) > 0.0) == (expected == "cpu-time")
    check_clock({"n": facts}, scenario(None))


def test_virtual_machines_have_no_such_work() -> None:
    facts = node(DriverTraits(hypervisor="qemu"))
    check_clock({"n": facts}, scenario("units"))
    with pytest.raises(UserError, match=r"^programs\.work = 'cpu-time': programs in the virtual machines of node n "):
        check_clock({"n": facts}, scenario("cpu-time"))
