"""The driver protocol: a small core, and optional protocols that determine a driver's capabilities.

A driver is written once per kind of guest and knows nothing of jobs, policies or the bus. Its methods are coroutines
that never block the loop; each returns once the effect was read back. Names of guests are unique in a lab. The agent
ensures that calls for one guest never overlap.

The core is `Driver`. A class that also has the members of `Saves`, `Migrates`, `Joins`, `Natives`, `Meters`, `Shares`,
`GuessesWaits` or `Outlives` implements that protocol; there is nothing to register. The agent refuses commands that
need a protocol which its driver does not implement (`node_agent.abilities`).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

from node_agent.drivers import errors
from node_agent.drivers.calibration import calibrate_here
from testbed.bus.messages import GuestSpec, ProgramSpec, RankKeys
from testbed.bus.migration import Destination
from testbed.bus.telemetry import GuestSample
from testbed.bus.traits import DriverTraits

# Re-exported here, because authors of drivers need them.
DriverError = errors.DriverError
ImageLostError = errors.ImageLostError
SuspectError = errors.SuspectError
UnableError = errors.UnableError

PREFIX = "dfrs-"  # begins the name of everything that agents make


GUEST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")


def check_name(guest: str) -> None:
    """Raise `SuspectError` for a name of a guest that could lead to files or options of others."""
    if not GUEST_NAME.fullmatch(guest):
        raise SuspectError(f"guest name {guest!r}: expected letters, digits and '-', at most 63")


def check_rank(spec: GuestSpec) -> None:
    """Raise `SuspectError` unless a guest that is ordered to join an MPI job is a rank of one."""
    if spec.program.ranks < 2:
        found = spec.program.ranks
        raise SuspectError(f"guest {spec.guest} has ranks = {found}: expected 2 or more, to join an MPI job")


@dataclass(frozen=True, slots=True)
class NodeBudget:
    """A driver's resources and folders; `prefix` begins the name of everything that it makes."""

    node: str
    cpus: float
    memory_mib: int
    state_dir: Path  # private to this agent: sockets, logs
    image_dir: Path  # saved guests
    address: str  # at which other nodes reach this one
    prefix: str


@runtime_checkable
class EnforcesFences(Protocol):
    """A driver whose guests outlive it, and that has another process destroy them at their fences."""

    async def enforce_fences(self) -> None:
        """Start that process unless it runs; called whenever fences were written, before their guests begin.

        Raises `DriverError`.
        """


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """Facts about the machine, as found when the driver opened.

    `capabilities` are those that follow from no protocol: `checksums`: the end of a guest carries the checksum of its
    task; `dom0`: this machine is a control domain, whose counters do not contain the CPU time of guests; `fences`:
    guests do not outlive their fences, even if the agent is dead, stopped or stuck; how guests are capped (`cap:`),
    accelerated (`accel:`) and migrated (`migration:`); `waits`: samples of ranks have `waits_s`. `lacks` names
    abilities of the driver's class that are missing on this machine (`save`, `live`, `mpi`, `native`, `shares`,
    `traffic`, `waits`), each with the reason.
    """

    capabilities: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    floor_mib: int = 0  # the least memory of a guest
    programs: tuple[str, ...] = ()  # by name; empty if the driver does not list them
    lacks: Mapping[str, str] = field(default_factory=dict)
    boot_s: float = 0.5  # about how long a small guest takes to start


@dataclass(frozen=True, slots=True)
class ImageKind:
    """The kind of saved images: nodes of one lab can exchange images of the same `name` only.

    `whole` images hold the guest with all that runs in it. `verified` images contain a digest that the restoring
    program checks. For others, the agent reads the image and compares its digest while the guest is restored.
    """

    name: str
    whole: bool = False
    verified: bool = True


@dataclass(frozen=True, slots=True)
class DriverEvent:
    """An event of a guest itself: `progress` (first after a start), `done`, `failed`, `drift`, `healed`.

    `mpi-barrier`: its rank waits in a barrier (see `Joins.mpi_join`).

    The detail of `failed` has a `reason`, and a `code` (`FailureCode`) unless that is `guest-failed`.
    """

    guest: str
    event: str
    mono_ns: int
    detail: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SaveReport:
    """A durable image: its size and digest, and the duration of each phase."""

    bytes: int
    digest: str
    run_on_s: float  # from the order to the agreed point
    write_s: float
    sync_s: float


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """A live migration that succeeded, as measured by the hypervisor; an emulated guest is stopped throughout."""

    bytes: int
    elapsed_s: float
    downtime_s: float
    rounds: int


@dataclass(frozen=True, slots=True)
class Reading:
    """Capped CPU time of a guest since its start here, by the finest counter, and the units of its last report."""

    cpu_s: float
    units: int


Meter = Callable[[], Reading]


@dataclass(frozen=True, slots=True)
class NativeReport:
    """Progress of a program's slowest rank on the node itself in `elapsed_s`."""

    units: int
    elapsed_s: float
    cpu_s: float


class Driver(ABC):
    """One kind of guest on one node: the seven methods that every driver has, and defaults for the rest.

    `name` is the name of the entry point. `traits` are declarations for other parts of the testbed.
    """

    name: ClassVar[str]
    traits: ClassVar[DriverTraits] = DriverTraits()

    @abstractmethod
    async def open(self, budget: NodeBudget, tell: Callable[[DriverEvent], None]) -> DriverFacts:
        """Probe the machine, remove leftovers of an earlier agent of this name, and get ready."""

    @abstractmethod
    async def close(self) -> None:
        """Destroy every guest and release everything; a guest that cannot be destroyed is skipped without an error."""

    @abstractmethod
    async def sweep(self, budget: NodeBudget, *, dry_run: bool = False) -> list[str]:
        """Destroy the leftovers of a killed agent with this budget; return a description of each. `open` does so, too.

        Call it only on a driver that is not open, without a live agent of that node. With `dry_run` nothing is
        destroyed.
        """

    @abstractmethod
    async def start(self, spec: GuestSpec, cap_cores: float) -> None:
        """Create the guest with its cap set, and return when its memory is allocated.

        A member of an MPI job (`ranks` > 1) begins at `Joins.mpi_join` instead, which then returns at that point.
        """

    @abstractmethod
    async def stop(self, guest: str) -> None:
        """Destroy the guest; a missing guest is no error."""

    @abstractmethod
    async def set_cap(self, guest: str, cap_cores: float) -> float:
        """Set the cap and return the cap in force, as read back; raises `DriverError` if that cannot be done.

        While a guest is uncapped (being created, held or saved) the cap is kept for later, and the cores that the guest
        can use are returned.
        """

    @abstractmethod
    def sample(self) -> list[GuestSample]:
        """Read the usage and the cap of every guest; cheap, called once per second.

        If a guest's cap differs from the one that was set, it is set again and reported as `drift`. The longest
        iteration in `supersteps` is the longest since the last call.
        """

    async def refresh(self) -> None:
        """Fetch the values for `sample` that take longer than reading a file; returns within a few seconds.

        By default there is nothing to fetch.
        """
        return

    async def calibrate(self, cpu_s: float) -> float:
        """Return work units that a core of a guest does in a second of CPU time.

        By default this package's programs are measured on the node itself, which suits guests that run there.
        """
        return await calibrate_here(cpu_s)


@runtime_checkable
class Saves(Protocol):
    """Guests can be saved to a file and restored, here or on another node: capability `save`.

    `images` is known once the driver is open; its name is the capability `save:NAME`, and `whole` one of its own.
    """

    @property
    def images(self) -> ImageKind:
        """The kind of images that are saved here."""

    async def hold(self, guest: str) -> int | None:
        """Stop at the next consistent point; return the iterations done, or None where any point will do."""

    async def release(self, guest: str) -> None:
        """Continue after a hold."""

    async def save(self, guest: str, at: int | None, image: Path) -> SaveReport:
        """Run a held guest on to iteration `at`, write it, make it durable, and destroy it.

        After a failure the guest is still held.
        """

    async def restore(self, spec: GuestSpec, cap_cores: float, image: Path) -> None:
        """Create the guest from its image, with its cap set, and return when its memory is read and verified.

        From a `whole` image the guest is held until `release`, and there is nothing to join; else it continues at once.
        """


@runtime_checkable
class FindsSaves(Protocol):
    """Whole images of saves that a killed agent ordered can be recognised; else each such image counts as partial.

    This is for drivers that save guests, whose hypervisor or program completes a save without the agent.
    """

    async def finished_save(self, guest: str, at: int | None, image: Path) -> SaveReport | None:
        """Return the size and the digest of the image of a guest that is gone, made durable; None if it is not whole.

        The save was ordered with `Saves.save` since the machine booted, and no save of the guest is in progress.
        """


@runtime_checkable
class Migrates(Protocol):
    """Guests can migrate to another node while they run: capability `live`."""

    async def migrate(self, guest: str, to: Destination, budget_s: float, no_progress_s: float) -> MigrationReport:
        """Migrate a running guest to another node's hypervisor; it is gone here when this returns.

        Raises `DriverError` when it takes longer than `budget_s`, or when the remaining amount reached no new minimum
        for `no_progress_s`. The guest then still runs here and not there, as far as this end can know.
        """

    async def adopt(self, spec: GuestSpec, cap_cores: float) -> None:
        """Take over a guest that has arrived by `migrate`, set its cap; raises `DriverError` if it is not here."""


@runtime_checkable
class Joins(Protocol):
    """Guests are members of MPI jobs: capability `mpi`."""

    async def mpi_join(self, guest: str, session: str) -> None:
        """Start the guest's rank: its own program, served as process manager; return when the rank has its memory.

        Each barrier of MPI that the rank enters is reported as the event `mpi-barrier`, with the `session`, the
        `number` of the barrier from 1, and the `keys` published since the last barrier. The rank waits there for
        `mpi_pass`. A driver with `whole` images reports the barrier again after the guest has moved from another node.
        """

    async def mpi_pass(self, guest: str, session: str, number: int, keys: Sequence[RankKeys], *, last: bool) -> None:
        """Hand the guest's rank the keys that other ranks published in a barrier; it passes with the `last` part.

        A missing guest, another session and a barrier already passed are no errors. Raises `DriverError` for a barrier
        still to come, and for keys that no rank of MPI would publish.
        """


@runtime_checkable
class Natives(Protocol):
    """The programs of guests also run outside guests: capability `native`."""

    async def native(self, program: ProgramSpec, seconds: float, cap_cores: float) -> NativeReport:
        """Run all ranks of a program on the node itself, by the code that guests run, and remove them afterwards.

        They are measured for `seconds` after the first progress of the last of them, each under a cap of `cap_cores`,
        or without one for 0. Raises `DriverError`, also when the work is done before that.
        """


@runtime_checkable
class Served(Protocol):
    """Daemons serve the guests of the node; their CPU time is overhead of the lab."""

    def daemons(self) -> Sequence[int]:
        """Return their process ids, once the driver is open."""


@runtime_checkable
class Shares(Protocol):
    """Guests can compete by shares of the node (`GuestSpec.share_cores`): capability `shares`.

    Under contention a guest gets its share; guests may use what others leave. All guests with shares together get no
    more than the node's cores. A guest has its first share before it works.
    """

    async def set_share(self, guest: str, share_cores: float) -> float:
        """Set the share of a guest that has one; return it as read back. `DriverError` if that cannot be done."""


@runtime_checkable
class GuessesWaits(Protocol):
    """The ranks of its MPI job for which a guest waits can be guessed from outside the guest: capability `traffic`."""

    async def guess_waits(self, guest: str, addresses: Sequence[str]) -> None:
        """Begin to guess; results are in `GuestSample.guessed_waits_s`. `addresses` are those of the guests, by rank.

        A repeated call begins again at 0. Raises `DriverError`.
        """


@runtime_checkable
class Meters(Protocol):
    """CPU time and work units of a guest can be read from any thread; else the agent reads `Driver.sample`."""

    def meter(self, guest: str) -> Meter:
        """Return a function that reads them in about 10 µs and raises `DriverError` once the guest has ended."""


OnSaved = Callable[[str, int | None, Path, SaveReport], None]


@runtime_checkable
class Outlives(Protocol):
    """Guests can outlive a killed agent: `open` takes over the guests that it finds, in their present state.

    A guest whose start had not returned is destroyed. Orders that had not returned may have had their effect or not, so
    each may be repeated. A guest that ended without an agent is reported as `done` or `failed` after `open`.

    `keep_s` are the seconds for which guests are kept without an agent; set it before `open`. `on_saved(guest, at,
    image, report)` is called when a guest has left after a save that no caller awaits, such as one that an earlier
    agent ordered, also during `open`. No other code runs between the departure of the guest and the call.
    """

    keep_s: float
    on_saved: OnSaved

    def taken_over(self) -> list[GuestSpec]:
        """Return the guests that `open` has taken over."""

    def settled(self, guest: str) -> None:
        """Forget a guest that has ended: its end has been reported, or its image noted, and no agent needs it again."""
