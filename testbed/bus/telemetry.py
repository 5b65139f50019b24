"""Telemetry: samples of the resource usage of a node and its guests, which agents publish every second."""

from __future__ import annotations

from typing import Annotated

import msgspec

from testbed.bus.limits import MOST_AMOUNT
from testbed.bus.messages import Record, Value, convert, make_printable
from testbed.bus.numbers import Amount, Count, DiskSpace

MOST_WAITS = 1024  # ranks of a job whose waits are reported
Waits = Annotated[tuple[Amount, ...], msgspec.Meta(max_length=MOST_WAITS)]
MOST_GIVERS = MOST_WAITS + 1  # of a guest's shares: ranks of its job, and the job's bank

SharesInCores = Annotated[float, msgspec.Meta(ge=0, le=MOST_AMOUNT)]  # of a whole job, or moved over a whole life
Taken = Annotated[dict[str, SharesInCores], msgspec.Meta(max_length=MOST_GIVERS)]


class Supersteps(Value, frozen=True):
    """Iterations of one guest: computing, then exchanging messages with the other members of its job.

    `steps`, `compute_s` and `comm_s` count from the job's first iteration, over all lives of the guest; `longest_s` is
    the longest iteration since the last sample. None of them includes time for which the guest was held or saved, which
    is part of the rescheduling penalty.
    """

    steps: Count
    longest_s: Amount
    compute_s: Amount
    comm_s: Amount


class BankSample(Value, frozen=True):
    """The bank of a job's shares, in cores: its balance, and the shares that it has taken from each guest so far."""

    share_cores: SharesInCores
    taken_cores: Taken = msgspec.field(default_factory=dict)


class NeedSample(Value, frozen=True):
    """The estimated needs of a guest: of CPU in cores (`testbed.needs.estimator.Need`), and of memory.

    `memory_mib` is the largest resident memory since the guest began to work: its need is at least that. A need is
    `guessed` if the guest was throttled in every window: only its bounds are measured.
    """

    cores: Amount
    least_cores: Amount
    most_cores: Amount
    booked_cores: Amount
    memory_mib: Amount = 0.0
    guessed: bool = False


class ExchangeCounts(Value, frozen=True):
    """Messages about shares that an agent has sent to other agents and received from them since its start."""

    sent: Count
    received: Count


class GuestSample(Value, frozen=True):
    """Usage and progress of one guest, as read by the agent; `supersteps` is None if the guest does not report them.

    `cap_cores` is the cap in force as read back for this sample. A guest without a cap has the most that it can use
    there; None means that the cap could not be read. `wanted_cores` is the requested cap. Agents before `wanted_cores`
    was added sent the requested cap as `cap_cores`; such a sample is corrected here, with an unknown cap in force.
    `throttled_s` is the time for which the cap has throttled the guest on this node, None if the node does not measure
    that.

    `share_cores` is the share in force of a guest that has one, read back in the same way. `taken_cores` are the shares
    that the guest has taken from each other guest of its job, and from the job's bank (`testbed.shares.node.BANK`), in
    this life of the job. `bank` is that bank, if it is on the guest's node and the guest is the job's first.

    `waits_s` is the time for which a rank has waited for messages of each rank of its job since its start; empty if
    that is unknown. `guessed_waits_s` is an estimate of the same times from outside the guest, by its CPU use and its
    network traffic, since the estimation began. `need` is the estimated CPU need of a guest with `GuestSpec.watch_s`,
    None before the first window is complete. `dirty_mib_per_s` is the rate at which a guest with `GuestSpec.writes`
    changes its memory, None if it is not known.
    """

    guest: str
    state: str
    cap_cores: Amount | None
    cpu_s: Amount
    rss_mib: Amount
    read_mib: Amount
    written_mib: Amount
    units_done: Count
    units_mono_ns: Count
    supersteps: Supersteps | None = None
    wanted_cores: Amount | None = None
    share_cores: Amount | None = None
    waits_s: Waits = ()
    guessed_waits_s: Waits = ()
    taken_cores: Taken = msgspec.field(default_factory=dict)
    bank: BankSample | None = None
    throttled_s: Amount | None = None
    need: NeedSample | None = None
    dirty_mib_per_s: Amount | None = None

    def __post_init__(self) -> None:
        """Correct the sample of an older agent, and make texts for people printable."""
        make_printable(self, "guest", "state")
        if self.wanted_cores is None:
            msgspec.structs.force_setattr(self, "wanted_cores", self.cap_cores)
            msgspec.structs.force_setattr(self, "cap_cores", None)


def guests_in(result: dict[str, object]) -> list[GuestSample]:
    """Return the guests in the reply to a `ListGuests`."""
    return convert(result.get("guests"), list[GuestSample])


class Telemetry(Record, frozen=True):
    """Node and guests, once per second.

    Samples of one `boot` (life of the agent) are published in the order of `mono_ns`, the node's monotonic clock when
    they were taken. `clock` identifies that clock, as in `NodeStatus`. Samples that waited for the bus arrive
    afterwards, marked `late`, and may arrive twice. `dropped` counts the samples of this boot that were discarded
    because too many waited. `refused` counts messages of this boot that could not be sent at once because too many
    waited for the broker: replies, which are lost until they are requested again, and events, which are sent later.

    `core_units_per_s` is the speed of a core by a short probe, 0 if it was not measured. `image_free_mib` is the free
    space of the node's image store, or the rest of its budget if that is less. Saves in progress count once they are
    complete. The value is None without a limit, or if the agent does not report it. `exchange` counts messages about
    shares, None if no guests of this node have exchanged any. `daemons_cpu_s` is the CPU time of the daemons that serve
    the node's guests, such as its libvirtd, since they started.
    """

    node: str
    mono_ns: Count
    cpu_frac: Amount
    memory_used_mib: Amount
    disk_read_mib: Amount
    disk_written_mib: Amount
    net_received_mib: Amount
    net_sent_mib: Amount
    agent_cpu_s: Amount
    agent_rss_mib: Amount
    guests: tuple[GuestSample, ...] = ()
    boot: str = ""
    late: bool = False
    dropped: Count = 0
    refused: Count = 0
    core_units_per_s: Amount = 0.0
    image_free_mib: DiskSpace | None = None
    clock: str = ""
    exchange: ExchangeCounts | None = None
    daemons_cpu_s: Amount = 0.0

    def __post_init__(self) -> None:
        """Make texts that people read printable."""
        make_printable(self, "node", "boot", "clock")
