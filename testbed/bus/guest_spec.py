"""Specification of a guest and its program, and the reference to a saved guest's image."""

from __future__ import annotations

from typing import Annotated

import msgspec

from testbed.bus.imbalance import PATTERN
from testbed.bus.lives import Generation
from testbed.bus.need_profile import PATTERN as PROFILE
from testbed.bus.need_profile import WHOLE
from testbed.bus.numbers import Cores, Count, Memory, Rank, Ranks, Workers
from testbed.bus.records import Value

GuestName = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9-]{0,62}\Z")]  # in commands and file names
ProgramName = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9][a-z0-9-]{0,62}\Z")]
Topology = Annotated[str, msgspec.Meta(pattern=r"\A(linear|ring|mesh|torus|all-to-all|tree)\Z")]
Profile = Annotated[str, msgspec.Meta(pattern=rf"\A({PROFILE})\Z")]
Imbalance = Annotated[str, msgspec.Meta(pattern=rf"\A({PATTERN})\Z")]


class ProgramSpec(Value, frozen=True):
    """The workload of one task.

    `work_units` is the job's demand per task; `units_per_iteration` of them are done between two messages (patterns) or
    two polls of the control channel (eatcpu). `workers` is the number of threads that compute in parallel.
    `touched_frac` is the fraction of the guest's ballast that is written, from its beginning on; the rest is reserved
    and never touched.

    With `cpu_ns_per_unit` a work unit is that many nanoseconds of the program's CPU time; with 0 it is a fixed amount
    of computation, whatever its CPU time. With `pace_ns` an iteration takes at least that many nanoseconds whatever the
    cap, so the task needs no more CPU than its units take. `profile` is the CPU need over the work
    (`testbed.bus.need_profile`).
    """

    name: ProgramName
    work_units: Count
    units_per_iteration: Count
    seed: Count
    workers: Workers = 1
    rank: Rank = 0
    ranks: Ranks = 1
    topology: Topology = "ring"
    imbalance: Imbalance = "uniform"
    message_bytes: Annotated[int, msgspec.Meta(ge=0, le=64 << 20)] = 4096
    touched_frac: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    cpu_ns_per_unit: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    pace_ns: Annotated[int, msgspec.Meta(ge=0, le=10**12)] = 0
    profile: Profile = WHOLE


class GuestSpec(Value, frozen=True):
    """One task of one job as one guest (a process tree, a virtual machine, a container) on one node.

    `cpu_cores` is the CPU usage of the task at full speed: CPU need times the node's cores. `address` is the guest's
    own address on the network of the lab's guests, with its prefix length (`10.77.1.5/16`); drivers whose guests have
    no network ignore it. `lease` names the lease under which the guest was last started or adopted; the agent sets it
    and ignores the value in a command. `generation` is the number of the task's life, see `Generation`.

    A guest with `share_cores` competes for the cores of its node; the value is its first share. With `waits` the node
    records for which tasks the guest waits, as it does for all guests with shares. With `watch_s` the node estimates
    the guest's CPU need, in windows of that many seconds. With `writes` it measures at which rate the guest writes to
    its memory, if it can.
    """

    guest: GuestName
    run: str
    job: Count
    task: Count
    program: ProgramSpec
    cpu_cores: Cores
    memory_mib: Memory
    address: Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f:.]{2,45}/[0-9]{1,3})?\Z")] = ""
    lease: str = ""
    generation: Generation = 0
    share_cores: Cores | None = None
    waits: bool = False
    watch_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 0.0
    writes: bool = False


class ImageRef(Value, frozen=True):
    """A saved guest: file name in the image store of the node that holds it, and the generation that was saved."""

    image: str
    bytes: Count
    digest: str
    generation: Generation = 0
