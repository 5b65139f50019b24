"""Messages on the bus: typed, versioned records (`testbed.bus.records`), the only interface of controller and agents.

An unknown kind of command is refused. Durations are seconds by a monotonic clock on the machine that reports them;
`*_mono_ns` are readings of that clock.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from testbed.bus import guest_spec, lives, records
from testbed.bus.migration import Destination
from testbed.bus.numbers import Cores, Count, Memory, Port, Positive, Rank
from testbed.bus.traits import DriverTraits

# Re-exported here, because users of records need them.
Record = records.Record
Value = records.Value
BadRecordError = records.BadRecordError
OtherProtocolError = records.OtherProtocolError
encode = records.encode
decode = records.decode
convert = records.convert
Fence = lives.Fence
Generation = lives.Generation
make_printable = records.make_printable
GuestName = guest_spec.GuestName
ProgramName = guest_spec.ProgramName
Topology = guest_spec.Topology
Imbalance = guest_spec.Imbalance
ProgramSpec = guest_spec.ProgramSpec
GuestSpec = guest_spec.GuestSpec
ImageRef = guest_spec.ImageRef


# --- commands: the closed set ------------------------------------------------------------------------------


def _kebab(name: str) -> str:
    return "".join("-" + c.lower() if c.isupper() else c for c in name).lstrip("-")


class Action(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=_kebab):
    """Base of the commands that an agent understands."""


WaitsFrom = Literal["layer", "traffic"]


class Exchange(Value, frozen=True, kw_only=True):
    """How the guests of a job exchange their shares (`testbed.shares`), and the nodes of all its guests.

    Each guest's CPU use is sampled every `period_s`. The bank, on node `bank`, gives its shares to guests every
    `grant_s`. The agents of these nodes authenticate their messages by a keyed hash with the `secret`. With `waits` =
    `traffic` an agent guesses from network traffic which rank a rank waits for, if the rank itself does not report
    that: `addresses` are those of the job's guests, in the order of `nodes`. With `capped` shares are caps, else
    weights.
    """

    mode: Literal["distributed", "bank"]
    secret: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    period_s: Annotated[float, msgspec.Meta(ge=0.1, le=3600)]
    grant_s: Annotated[float, msgspec.Meta(ge=0.1, le=3600)]
    nodes: dict[GuestName, str]
    bank: str = ""
    waits: WaitsFrom = "layer"
    addresses: tuple[str, ...] = ()
    capped: bool = False


class Start(Action, frozen=True):
    """Create a guest, from nothing or from `image`, with its cap set before it runs.

    With `cold` the image's pages are dropped from the node's page cache first; an image on a tmpfs consists of such
    pages and stays. The reply to a start from an image carries `cached_frac`, the fraction of the image that was in
    memory right before it was read. The key is missing if that is unknown.

    With `verify` the agent computes the guest's expected final checksum in parallel. The time for it is proportional to
    the guest's work, so guests that never end must not be verified.

    A guest is destroyed at its `fence` unless the fence is renewed; the command is refused if the fence has passed.
    With `exchange` the guest exchanges its share, or its cap, with other guests of the job.
    """

    spec: GuestSpec
    cap_cores: Cores
    image: ImageRef | None = None
    cold: bool = False
    verify: bool = True
    fence: Fence | None = None
    exchange: Exchange | None = None


class RankKeys(Value, frozen=True):
    """Keys that one rank of an MPI job publishes for the others; see `testbed.bus.mpi_keys`."""

    rank: Rank
    keys: dict[str, str]


SessionName = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")]


class MpiJoin(Action, frozen=True):
    """Start the MPI rank of `guest`; done when the rank has allocated its memory.

    MPI cannot start before all ranks have exchanged keys. The agent sends an event `mpi-barrier` whenever the rank
    enters a barrier of MPI, and the rank waits there for `MpiPass`. `session` names this life of the job's processes.
    """

    guest: GuestName
    session: SessionName
    generation: Generation = 0


class MpiPass(Action, frozen=True):
    """Let the rank of `guest` pass the barrier `number` of `session`; a missing guest is no error.

    `keys` are the keys that other ranks published in this barrier, or a part of them: the rank passes with the `last`
    part.
    """

    guest: GuestName
    session: SessionName
    number: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
    keys: tuple[RankKeys, ...] = ()
    last: bool = True
    generation: Generation = 0


class SetCaps(Action, frozen=True):
    """Set the CPU cap of each guest, in cores; the reply carries `caps`, the values in force as read back.

    The cap of a guest is lifted while the guest is created, held or saved: the reply then has the most that the guest
    can use, and the cap is set later. The guests' earlier exchanges of caps are discarded; with `exchange` they
    exchange their caps from now on. With `lower` a guest keeps a cap that is lower than the requested one.
    """

    caps: dict[GuestName, Cores]
    generations: dict[GuestName, Generation] = {}
    exchange: Exchange | None = None
    lower: bool = False


class Hold(Action, frozen=True):
    """Stop a guest at its next consistent point; the reply carries `at` (iterations done) or None.

    The reply also carries `wall_ns`, Unix time by the node's clock at which the guest stopped. With `image` the node
    first reserves disk space for that image, and refuses if there is too little. The reservation lasts until the image
    is written, or the guest is released or gone.
    """

    guest: GuestName
    image: str = ""
    generation: Generation = 0


class Release(Action, frozen=True):
    """Let a held guest continue; the reply carries `wall_ns`, Unix time by the node's clock at which it continued."""

    guest: GuestName
    generation: Generation = 0


class Save(Action, frozen=True):
    """Run a held guest on to iteration `at`, write it to `image` in a store of the node, and free its memory.

    `store` is one of `NodeFacts.image_stores`, or "" for the first of them. Names of images are unique over the stores
    of a node, so commands to restore, fetch or drop one need not name the store.
    """

    guest: GuestName
    image: str
    at: int | None = None
    store: str = ""
    generation: Generation = 0


class Migrate(Action, frozen=True):
    """Move a running guest to another node's hypervisor while it works; it is gone from this node afterwards.

    The migration is aborted after `budget_s`, or when the remaining amount reached no new minimum for `no_progress_s`:
    the guest then still runs here. The reply carries `bytes`, `elapsed_s`, `downtime_s` and `rounds`.
    """

    guest: GuestName
    to: Destination
    budget_s: Positive
    no_progress_s: Positive
    generation: Generation = 0


class Adopt(Action, frozen=True):
    """Take over a guest that has arrived by a live migration and set its cap; a second takeover is no error.

    `verify` and `fence` are as for `Start`.
    """

    spec: GuestSpec
    cap_cores: Cores
    verify: bool = True
    fence: Fence | None = None


class ExpectGuest(Action, frozen=True):
    """Destroy a guest that will arrive by a live migration at its fence, unless the fence is renewed.

    A guest that arrives after its fence is also destroyed, until the next life of its task begins here.
    """

    guest: GuestName
    generation: Generation
    fence: Fence


class RenewFences(Action, frozen=True):
    """Move the fences of these guests to a later moment of the node's clock; guests without a fence are ignored."""

    fence: Fence
    guests: tuple[GuestName, ...]


class OfferImage(Action, frozen=True):
    """Serve an image to node `to` once, within `for_s` seconds, if it shows the ticket with this digest."""

    image: ImageRef
    ticket_digest: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    to: str
    for_s: Annotated[float, msgspec.Meta(gt=0, le=1e9)]


class FetchImage(Action, frozen=True):
    """Pull an image from the image server of another agent, which has the digest of `ticket`, into this node's store.

    `memory_mib` is the memory of its guest, which bounds its size; controllers of earlier versions send 0.
    """

    image: ImageRef
    host: Annotated[str, msgspec.Meta(max_length=4096)]
    port: Port
    ticket: Annotated[str, msgspec.Meta(max_length=128)] = ""
    memory_mib: Memory = 0


class DropImage(Action, frozen=True):
    """Delete an image; a missing image is no error."""

    image: str


class Stop(Action, frozen=True):
    """Destroy a guest; a missing guest is no error."""

    guest: GuestName
    generation: Generation = 0


class Calibrate(Action, frozen=True):
    """Measure the work units per second of CPU time of one core, over `cpu_s` seconds."""

    cpu_s: Annotated[float, msgspec.Meta(ge=0, le=86400)]


class CapChange(Value, frozen=True):
    """New CPU caps, in cores, for some of the guests of a `Watch`, `after_s` seconds after it began."""

    after_s: Annotated[float, msgspec.Meta(ge=0)]
    caps: dict[GuestName, float]


class Watch(Action, frozen=True):
    """Sample CPU time and work units of `guests` every `every_s` for `for_s` seconds, changing caps meanwhile.

    The reply carries `t_s`, the times of the samples by the node's monotonic clock, from 0. `cpu_s` and `units` have as
    many values by guest name. `cpu_s` is CPU time by the finest counter: for a virtual machine that of its virtual
    CPUs, to which caps apply. `units` are the work units of the guest's last report. `cap_changes` has one entry for
    each of `caps`: `begin_s` and `end_s` by the same clock, and `caps` as read back. All samples together are at most
    `MAX_WATCH_SAMPLES`.
    """

    guests: tuple[GuestName, ...]
    every_s: Annotated[float, msgspec.Meta(ge=0.005)]
    for_s: Annotated[float, msgspec.Meta(gt=0, le=120)]
    caps: tuple[CapChange, ...] = ()


MAX_WATCH_SAMPLES = 24_000  # of all guests of one watch


class Native(Action, frozen=True):
    """Run the `ranks` tasks of `program` on the node itself, outside any guest, by the code that guests run.

    The tasks run until `seconds` after the last of them has made its first progress, under a cap of `cap_cores` each;
    0 is no cap. The reply carries `units`, `elapsed_s` (by the node's monotonic clock) and `cpu_s` of the slowest rank.
    There are at most `MOST_NATIVE_RANKS` tasks. Nodes that support this command have the capability `native`.
    """

    program: ProgramSpec
    seconds: Annotated[float, msgspec.Meta(gt=0, le=600)]
    cap_cores: Cores = 0.0


MOST_NATIVE_RANKS = 64


class ListGuests(Action, frozen=True):
    """List the guests of this node with their states, after all commands about the guests in `settled` have ended."""

    settled: tuple[GuestName, ...] = ()


class Ping(Action, frozen=True):
    """Answer at once."""


class Cancel(Action, frozen=True):
    """Cancel the command `command`, if it still runs."""

    command: str


class Quit(Action, frozen=True):
    """Destroy every guest and end the agent."""


AnyAction = (
    Start | MpiJoin | MpiPass | SetCaps | Hold | Release | Save | Migrate | Adopt | ExpectGuest | RenewFences
    | OfferImage | FetchImage | DropImage | Stop | Calibrate | Watch | Native | ListGuests | Ping | Cancel | Quit
)  # fmt: skip


class Command(Record, frozen=True):
    """One order to one node.

    The id makes a command idempotent: an agent repeats its reply to an id that it has received before. `deadline_s`
    counts from arrival; the agent aborts the command at its deadline.
    """

    id: str
    lease: str
    reply_to: str
    deadline_s: Annotated[float, msgspec.Meta(gt=0)]
    action: AnyAction
    release: str = ""  # of the controller


ReplyStatus = Literal["accepted", "done", "failed", "cancelled", "expired", "rejected"]


class Reply(Record, frozen=True):
    """An agent's answer: `accepted` at once, then exactly one of done, failed, cancelled, expired, rejected.

    `result` is the driver's report as plain data. `elapsed_s` is the time that the agent took. `code` is a
    `FailureCode` if the agent knows the cause of a failure, for any command.
    """

    id: str
    node: str
    status: ReplyStatus
    error: str | None = None
    result: dict[str, object] = msgspec.field(default_factory=dict)
    elapsed_s: float = 0.0
    code: str = ""

    def __post_init__(self) -> None:
        """Make texts that people read printable."""
        make_printable(self, "node", "error", "code")

    @property
    def final(self) -> bool:
        """Whether no other reply follows."""
        return self.status != "accepted"


# --- messages that agents send by themselves -------------------------------------------------------------------------


class NodeFacts(Value, frozen=True):
    """Facts of a node: budget, machine, driver, the driver's capabilities, and the programs that its guests can run.

    `image_stores` are its stores for saved guests: `disk` is the first, `memory` a folder on a tmpfs. `guest_boot_s` is
    the approximate start time of a small guest. Agents of earlier releases send neither `guest_boot_s` nor the `traits`
    of their driver; `testbed.bus.drivers.traits_in` then finds the traits by the driver's name.
    """

    cpus: float
    memory_mib: int
    machine_cores: int
    machine_memory_mib: int
    cpu_model: str
    kernel: str
    driver: str
    capabilities: tuple[str, ...]
    versions: dict[str, str]
    address: str
    image_port: int
    image_free_mib: int
    guest_floor_mib: int = 0
    programs: tuple[str, ...] = ()
    image_stores: tuple[str, ...] = ("disk",)
    traits: DriverTraits | None = None
    guest_boot_s: float | None = None

    def __post_init__(self) -> None:
        """Make texts that people read printable."""
        make_printable(
            self, "cpu_model", "kernel", "driver", "capabilities", "versions", "address", "programs", "image_stores"
        )


class NodeStatus(Record, frozen=True):
    """Retained presence of a node: online with facts, or offline by its own message (`left`) or by its last will.

    `clock` identifies the node's monotonic clock: it differs after each boot of the machine. Agents without it, of
    earlier releases, cannot enforce fences.
    """

    node: str
    online: bool
    boot: str = ""
    facts: NodeFacts | None = None
    reason: str = ""
    left: bool = False
    release: str = ""  # of the agent
    clock: str = ""

    def __post_init__(self) -> None:
        """Make texts that people read printable."""
        make_printable(self, "node", "boot", "reason", "release", "clock")


MPI_BARRIER = "mpi-barrier"


class GuestEvent(Record, frozen=True):
    """A guest changed by itself: `progress` (first after a start or restore), `done`, `failed`, `drift`, `healed`.

    `mpi-barrier` means that the rank of the guest waits in a barrier of MPI. Its detail is the `session` of `MpiJoin`,
    the `number` of the barrier, from 1, and the `keys` that the rank has published since the last barrier. The
    successful end of a guest whose result is still being checked is published first as `ended`, with the detail of
    `done`; after the check it is published as `done`, or as `failed` if the result is wrong. An event `limit` of the
    guest `ITSELF` concerns the agent itself, with an `AgentLimit` as its detail.
    """

    node: str
    guest: str
    event: str
    mono_ns: Count
    detail: dict[str, object] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make names printable; `testbed.bus.event_details` does this for the detail."""
        make_printable(self, "node", "guest", "event")


ITSELF = "agent"  # in place of a guest, whose names have a prefix


class AgentLimit(Value, frozen=True):
    """An agent has reached a bound on its own memory or log (`reached`), or is well below it again (`left`); in MiB."""

    what: Literal["memory", "log"]
    state: Literal["reached", "left"]
    value_mib: Memory
    bound_mib: Memory


OnControllerLoss = Literal["keep", "pause", "remove"]


class Lease(Record, frozen=True):
    """The lease of the lab: the controller that drives it.

    Retained and renewed. Agents obey commands whose token has this `digest` (`testbed.bus.lease`) and no others. They
    destroy their guests when the lease is released, and apply `on_controller_loss` when it runs out. `since_unix_s` is
    the time at which the lease was taken. A holder that releases its lease proves its identity by the `token`. Another
    controller ends a lease on a topic of its own (`testbed.bus.topics.release_topic`), with its name in `released_by`.

    `run` is the tag of the run that the holder drives, empty without one. Where `on_controller_loss` is `keep`, guests
    and images of a run outlive the lease of a lost controller, and belong to the next holder that drives the same run.
    That holder replaces the lease at once if it proves by a token in `succeeds` that it is the successor.
    """

    digest: str
    holder: str
    ttl_s: Annotated[float, msgspec.Meta(gt=0)]
    expires_unix_s: float
    since_unix_s: float = 0.0
    on_controller_loss: OnControllerLoss = "remove"
    released: bool = False
    released_by: str = ""
    token: str = ""  # published with the release, and invalid from then on
    release: str = ""  # of the holder's testbed
    run: Annotated[str, msgspec.Meta(max_length=64)] = ""
    succeeds: Annotated[tuple[str, ...], msgspec.Meta(max_length=16)] = ()  # tokens of leases before, then invalid

    def __post_init__(self) -> None:
        """Make texts that people read printable."""
        make_printable(self, "holder", "released_by", "release", "run")
