"""What a hypervisor must be able to do: the small interface between an agent and its guests.

A driver is written once per kind of guest (process, libvirt, docker) and knows nothing of jobs, policies or the
bus. Its methods are coroutines that never block the loop; each returns once the effect was read back. Names of
guests are unique in a lab. Calls for one guest never overlap: the agent sees to that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from testbed.bus.messages import GuestSpec, ProgramSpec, RankKeys
from testbed.bus.migration import Destination
from testbed.bus.telemetry import GuestSample
from testbed.errors import TestbedError
from testbed.failure_codes import FailureCode

PREFIX = "dfrs-"  # begins the name of everything that agents make


class DriverError(TestbedError):
    """An operation on a guest failed; the message says what was looked for and what was found."""


class SuspectError(DriverError):
    """What a command names, or what is in an image, could harm this node, and no honest controller or node made it."""

    suspicious = True


def check_rank(spec: GuestSpec) -> None:
    """Raise `SuspectError` unless a guest, which is told to join its MPI job, is a rank of one."""
    if spec.program.ranks < 2:
        found = spec.program.ranks
        raise SuspectError(f"guest {spec.guest} has ranks = {found}: expected 2 or more, to join an MPI job")


class ImageLostError(DriverError):
    """A saved image is missing, or is not the one that was saved."""

    failure_code = FailureCode.IMAGE_LOST


@dataclass(frozen=True, slots=True)
class NodeBudget:
    """What a driver may use, and where its files go; `prefix` begins the name of everything that it makes."""

    node: str
    cpus: float
    memory_mib: int
    state_dir: Path  # private to this agent: sockets, logs
    image_dir: Path  # saved guests
    address: str  # at which other nodes reach this one
    prefix: str


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """What the driver found when it opened: its abilities, how it caps, versions, the programs of its guests.

    The guests of a `virtual` driver live in the event loop's time, which may be virtual, and use nothing of the
    machine: neither threads nor the machine's counters belong to them.
    """

    capabilities: tuple[str, ...]
    versions: dict[str, str]
    floor_mib: int = 0  # the least memory of a guest
    programs: tuple[str, ...] = ()  # by name; empty if the driver does not say
    virtual: bool = False


@dataclass(frozen=True, slots=True)
class Happening:
    """Something a guest did by itself: `progress` (first after a start), `done`, `failed`, `drift`, `healed`.

    `mpi-barrier`: its rank waits in a barrier (see `mpi_join`).

    The detail of `failed` has a `reason`, and a `code` (`FailureCode`) unless that is `guest-failed`.
    """

    guest: str
    event: str
    mono_ns: int
    detail: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SaveReport:
    """A durable image: its size and digest, and where the time went."""

    bytes: int
    digest: str
    run_on_s: float  # from the order to the agreed point
    write_s: float
    sync_s: float


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """A live migration that succeeded, as the hypervisor counted it; an emulated guest stands still all the time."""

    bytes: int
    elapsed_s: float
    downtime_s: float
    rounds: int


@dataclass(frozen=True, slots=True)
class Reading:
    """CPU time that a guest's cap holds for, since its start here, by the finest counter; units as it told last."""

    cpu_s: float
    units: int


Meter = Callable[[], Reading]


@dataclass(frozen=True, slots=True)
class NativeReport:
    """What the slowest rank of a program did on the node itself, while `elapsed_s` passed."""

    units: int
    elapsed_s: float
    cpu_s: float


class Driver(Protocol):
    """Behaviour of one kind of guest on one node; `name` is that of its entry point.

    Capabilities that change how it is driven: `whole`: an image holds the guest with all that runs in it; `live`: a
    guest can go to another node while it runs (`migrate`, `adopt`); `mpi`: guests can be members of MPI jobs;
    `checksums`: `done` carries the checksum that the task must come to; `native`: it runs programs outside guests;
    `dom0`: this machine is a control domain, whose counters know nothing of the guests' CPU time.
    """

    @property
    def name(self) -> str:
        """The entry point's name."""

    async def open(self, budget: NodeBudget, tell: Callable[[Happening], None]) -> DriverFacts:
        """Probe the machine, remove what an earlier agent of this name left, and get ready."""

    async def sweep(self, budget: NodeBudget, *, dry_run: bool = False) -> list[str]:
        """Destroy what a killed agent with this budget left; return what it was, in words. `open` does so by itself.

        For a driver that is not open, and no live agent of that node. With `dry_run` it only looks.
        """

    async def close(self) -> None:
        """Destroy every guest and release everything; never raises for a guest that resists, it tries the next."""

    async def start(self, spec: GuestSpec, cap_cores: float, image: Path | None) -> None:
        """Create the guest with its cap set, and return when its memory is there (from `image`: read and verified).

        A member of an MPI job (`ranks` > 1) begins at `mpi_join` instead, which then returns at that point. A `whole`
        driver returns with the guest held when it comes from an image, its cap set: `release` lets it go on, and
        there is nothing to join.
        """

    async def mpi_join(self, guest: str, session: str) -> None:
        """Start the guest's rank: its own program, served as process manager; return when the rank has its memory.

        Whenever the rank enters a barrier of MPI that happens as `mpi-barrier`, with `session`, the `number` of the
        barrier, from 1, and the `keys` that the rank published since the last one. It waits there for `mpi_pass`.
        A `whole` driver tells of a barrier again when the guest has come from another node meanwhile.
        """

    async def mpi_pass(self, guest: str, session: str, number: int, keys: Sequence[RankKeys], *, last: bool) -> None:
        """Hand the guest's rank what others published in a barrier; it passes with the `last` part.

        A guest that is not there, another session, and a barrier that was passed are no errors. Raises `DriverError`
        for a barrier still to come, and for keys that no rank of MPI would publish.
        """

    async def set_cap(self, guest: str, cap_cores: float) -> float:
        """Set the cap and return the cap in force, as read back; raises `DriverError` if that cannot be done.

        While the guest is made, held or saved without one, the cap is kept for later and all that it can use returned.
        """

    async def hold(self, guest: str) -> int | None:
        """Stop at the next consistent point; return the iterations done, or None where any point will do."""

    async def release(self, guest: str) -> None:
        """Go on after a hold."""

    async def save(self, guest: str, at: int | None, image: Path) -> SaveReport:
        """Run a held guest on to iteration `at`, write it, make it durable, and destroy it.

        If that fails the guest is held still.
        """

    async def migrate(self, guest: str, to: Destination, budget_s: float, no_progress_s: float) -> MigrationReport:
        """Move a running guest to another node's hypervisor while it works; it is gone here when this returns.

        Raises `DriverError` when it takes longer than `budget_s`, or when `no_progress_s` passed without less remaining
        than ever before: the guest then still runs here, and not there, as far as this end can know.
        """

    async def adopt(self, spec: GuestSpec, cap_cores: float) -> None:
        """Take over a guest that has arrived by `migrate`, set its cap; raises `DriverError` if it is not here."""

    async def stop(self, guest: str) -> None:
        """Destroy the guest; one that is not there is no error."""

    async def calibrate(self, cpu_s: float) -> float:
        """Return work units a core does in a second of CPU time."""

    async def refresh(self) -> None:
        """Fetch what `sample` tells, as far as that takes longer than reading a file; within a few seconds."""

    def sample(self) -> list[GuestSample]:
        """Read what every guest used so far, and its cap; cheap, called once a second.

        A guest that works under another cap than was set gets its own again; that is told as `drift`.

        The longest iteration in `supersteps` is that since the last call.
        """

    def meter(self, guest: str) -> Meter:
        """Return what reads a guest's CPU time and units, from any thread, in some 10 µs; it raises `DriverError`.

        It does so once the guest has ended.
        """

    async def native(self, program: ProgramSpec, seconds: float, cap_cores: float) -> NativeReport:
        """Run all ranks of a program on the node itself, by the code that guests run, and nothing is left of them.

        They are measured for `seconds` after the first progress of the last of them, each under a cap of `cap_cores`,
        or without one for 0. Raises `DriverError`, also when the work is done before that, and without the capability
        `native`.
        """
