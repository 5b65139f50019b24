"""The expected result of a task that sends no messages is computed at a cost that does not grow with its iterations."""

from node_agent.programs.expected import work_checksum
from node_agent.programs.kernel import Kernel
from node_agent.programs.task import Task


def task(**changes):
    return Task(**{
        "guest": "g", "run": "r", "job": 1, "task": 0, "memory_mib": 64, "touched_frac": 1.0, "name": "eatcpu",
        "work_units": 1000, "units_per_iteration": 7, "seed": 3, "workers": 2, "rank": 0, "ranks": 1,
        "topology": "ring", "imbalance": "uniform", "message_bytes": 8, **changes,
    })  # fmt: skip


def test_hours_of_work_take_no_more_looks_than_seconds():
    looks = []
    given_up = lambda: bool(looks.append(1))  # noqa: E731  # counts
    assert work_checksum(task(work_units=10**12), given_up) is not None
    assert len(looks) == 1


def test_it_is_what_the_work_comes_to():
    for changes in (
        {},
        {"work_units": 3},
        {"work_units": 14},
        {"workers": 1},
        {"rank": 2, "ranks": 3, "imbalance": "1/i"},
    ):
        done = task(**changes)
        kernel = Kernel(done.seed, done.rank, done.workers)
        for iteration in range(done.iterations):
            kernel.run(done.share(iteration))
        assert work_checksum(done) == kernel.checksum()
