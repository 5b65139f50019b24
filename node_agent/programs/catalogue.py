"""Programs by name: the two that are always there, and plug-ins.

A plug-in is an entry point of the group `testbed.programs`: a `Program`. It defines the computation of a task; the rest
is the same for all programs: control messages, holding, saving, progress, memory, and the messages between the ranks of
an MPI job. A command names a program, and can name only what is installed on the node. Scenarios accept names of small
letters, digits and "-".

    [project.entry-points."testbed.programs"]
    stream = "my_package.programs:STREAM"
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Protocol

from numpy.typing import NDArray

from node_agent.programs.task import Task, TaskError
from testbed.errors import nearest

PLUGIN_GROUP = "testbed.programs"
BUILT_IN = ("eatcpu", "patterns")  # the same work: they differ in whether ranks exchange messages


class Work(Protocol):
    """The computation of one rank. A unit should take between 1 µs and 1 ms, and always the same time."""

    @property
    def arrays(self) -> Sequence[NDArray[Any]]:
        """All state, in contiguous arrays whose sizes follow from the task: saved, and overwritten by a restore."""

    def run(self, units: int) -> None:
        """Do `units` units; the workers of the task run in parallel."""

    def checksum(self) -> int:
        """Return 64 bits that depend on all work done."""


Expected = Callable[[Task, Callable[[], bool]], int | None]


@dataclass(frozen=True, slots=True)
class Program:
    """The computation of a task, and its expected checksum.

    `work(task)` creates the computation of a new task. `expected(task, given_up)` returns, without doing the work, the
    checksum of all of `task.share(iteration)` units of all iterations, or None as soon as `given_up()` is true. Results
    of a program without it are not verified, and are reported as such.
    """

    work: Callable[[Task], Work]
    expected: Expected | None = None


def installed() -> tuple[str, ...]:
    """Return the names of the programs that are installed here; the built-in ones come first."""
    return (*BUILT_IN, *sorted({point.name for point in entry_points(group=PLUGIN_GROUP)} - set(BUILT_IN)))


def unknown(name: str, known: Sequence[str]) -> str:
    """Return the message for a program that is not among the known ones."""
    return f"program {name!r}: expected one of {', '.join(known)}{nearest(name, known, 1)}"


def find_program(name: str) -> Program:
    """Return an installed program, or raise `TaskError`."""
    if name in BUILT_IN:
        from node_agent.programs.expected import work_checksum  # noqa: PLC0415  # only for those that use it
        from node_agent.programs.kernel import Kernel  # noqa: PLC0415  # only for those that use it

        return Program(lambda task: Kernel(task.seed, task.rank, task.workers), work_checksum)
    points = {point.name: point for point in entry_points(group=PLUGIN_GROUP)}
    if name not in points:
        raise TaskError(unknown(name, installed()))
    try:
        program = points[name].load()
    except Exception as error:
        raise TaskError(f"program {name!r} ({points[name].value}): {type(error).__name__}: {error}") from error
    if not isinstance(program, Program):
        raise TaskError(f"program {name!r} ({points[name].value}): expected a Program, found {program!r}")
    return program
