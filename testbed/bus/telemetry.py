"""Records of what a node and its guests used, as agents report them every second."""

from __future__ import annotations

import msgspec

from testbed.bus.messages import Record, Value, convert, make_printable
from testbed.bus.numbers import Amount, Count, DiskSpace


class Supersteps(Value, frozen=True):
    """Iterations of one guest: computing, then exchanging messages with the other members of its job.

    `steps`, `compute_s` and `comm_s` count from the job's first iteration, over all lives of the guest; `longest_s` is
    the longest iteration since the last sample. Time for which the guest was held or saved is in none of them: it is
    part of the rescheduling penalty.
    """

    steps: Count
    longest_s: Amount
    compute_s: Amount
    comm_s: Amount


class GuestSample(Value, frozen=True):
    """What one guest used so far, as read by the agent, and how far it is; `supersteps` is None if it does not say.

    `cap_cores` is the cap in force as read back for this very sample: all that the guest can use while it has none,
    None if it could not be read. `wanted_cores` is the cap that was asked for. Agents before the latter was added told
    it as `cap_cores`, which is corrected here: what was in force there is not known.
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

    def __post_init__(self) -> None:
        """Correct the sample of an older agent, and make what a person reads printable."""
        make_printable(self, "guest", "state")
        if self.wanted_cores is None:
            msgspec.structs.force_setattr(self, "wanted_cores", self.cap_cores)
            msgspec.structs.force_setattr(self, "cap_cores", None)


def guests_in(result: dict[str, object]) -> list[GuestSample]:
    """Return the guests that the reply to a `ListGuests` tells of."""
    return convert(result.get("guests"), list[GuestSample])


class Telemetry(Record, frozen=True):
    """Node and guests, once a second.

    Samples of one `boot` (life of the agent) are published in the order of `mono_ns`, the node's monotonic clock when
    they were taken; what waited for the bus comes afterwards, marked `late`, and may come twice. `dropped` counts the
    samples of this boot that had to be given up, as too many waited. `refused` counts what the
    agent of this boot could not send at once, as too much waited for the broker: replies, which are lost until they are
    asked for again, and events, which are sent later. `core_units_per_s` is how fast a core is, by a
    short probe; 0 if that was not measured. `image_free_mib` is the room for images where the node keeps them, or what
    its budget leaves if that is less; saves under way count once they are complete. None if nothing limits it, or if
    the agent does not report it.
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

    def __post_init__(self) -> None:
        """Make what a person reads printable."""
        make_printable(self, "node", "boot")
