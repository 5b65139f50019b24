"""The state of a run at one moment, as plain data for displays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from testbed.control.cluster import Cluster
from testbed.control.executor import Executor
from testbed.control.share_flows import bank_cores
from testbed.lab.fleet import Fleet
from testbed.lab.guest_specs import cap_at
from testbed.run.phases import Phase
from testbed.scheduling.policies.xge_slots import Partitions

_RUNS = frozenset({Phase.RUNNING.value, Phase.MIGRATING.value})


@dataclass(frozen=True, slots=True)
class GuestPicture:
    """One guest on a node; cap and usage in cores. A guest that competes by shares has its present `share_cores`."""

    job: int
    task: int
    phase: str
    cap_cores: float
    used_cores: float
    share_cores: float | None = None

    @property
    def due_cores(self) -> float:
        """The cores due to the guest: its share if it competes by shares, else its cap."""
        return self.cap_cores if self.share_cores is None else self.share_cores


@dataclass(frozen=True, slots=True)
class OperationPicture:
    """One operation in progress, for `elapsed_s` wall seconds so far; `nodes` by name."""

    verb: str
    job: int
    nodes: tuple[str, ...]
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class NodePicture:
    """One node; memory in MiB. `slot` is the active slot under XGE (`testbed.scheduling.policies.xge_slots`)."""

    name: str
    online: bool
    cpus: float
    memory_mib: int
    memory_held_mib: int
    guests: tuple[GuestPicture, ...]
    drained: bool = False
    slot: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The run at one moment.

    `work_frac` is the fraction of all work that is done. `eta_s` is the expected number of wall seconds until the end,
    None when unknown. `queue` has the ids of the jobs that do not run by the last decision, in order of submission;
    `paused` of them were running before. `hold` is the operator's hold: empty, `paused`, `resuming` or `stopping`.
    `bank_cores` has the shares of each bank, by job.
    """

    trace_s: float
    wall_s: float
    eta_s: float | None
    work_frac: float
    coming: int
    waiting: int
    running: int
    paused: int
    done: int
    failed: int
    queue: tuple[int, ...]
    operations: tuple[OperationPicture, ...]
    pending: int
    reschedulings: int
    penalty_s: float
    penalty_max_s: float
    nodes: tuple[NodePicture, ...]
    hold: str = ""
    recovering: bool = False  # a resumed run before the takeover of its nodes is complete
    bank_cores: Mapping[int, float] = field(default_factory=dict)


class Display(Protocol):
    """Displays the progress of a run."""

    def line(self, trace_s: float, text: str) -> None:
        """Show a line about an event at a trace second."""

    def show(self, snapshot: Snapshot) -> None:
        """Show the present state, called a few times per second."""


class UseMeter:
    """Cores that each guest used between its last two samples."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, float, float]] = {}

    def use(self, guest: str, mono_ns: int, cpu_s: float) -> float:
        """Record a sample; return the cores used since the previous one."""
        before = self._last.get(guest)
        if before is None or cpu_s < before[1]:
            self._last[guest] = (mono_ns, cpu_s, 0.0)
            return 0.0
        if mono_ns <= before[0]:
            return before[2]
        used = (cpu_s - before[1]) / ((mono_ns - before[0]) / 1e9)
        self._last[guest] = (mono_ns, cpu_s, used)
        return used


def take_snapshot(
    cluster: Cluster, executor: Executor, fleet: Fleet, meter: UseMeter, trace_s: float, wall_s: float,
    partitions: Partitions | None = None,
) -> Snapshot:  # fmt: skip
    """Return a snapshot of this moment; `partitions` are the partitions of XGE, None under other policies."""
    active = cluster.active()
    idle = [live for live in active if live.state.wanted is None]
    phases = [live.state.phase for live in cluster.jobs.values()]
    work = sum(live.job.run_time_s * live.job.tasks * live.job.cpu_need_frac for live in cluster.jobs.values())
    done = sum(
        min(1.0, live.measured_virtual_time_s() / live.job.run_time_s)
        * live.job.run_time_s * live.job.tasks * live.job.cpu_need_frac
        for live in cluster.jobs.values()
    )  # fmt: skip
    frac = done / work if work else 1.0
    interruptions = [each for live in cluster.jobs.values() for each in live.state.reschedulings]
    penalties = [each.so_far_s for each in interruptions if each.complete]
    nodes, banks = [], {}
    for node in fleet.nodes:
        samples = {} if node.telemetry is None else {sample.guest: sample for sample in node.telemetry.guests}
        guests = []
        held_mib = 0
        for live in cluster.jobs.values():
            held_mib += live.held_mib(node.index)
            for task, where in enumerate(live.state.running_on or ()):
                if where != node.index:
                    continue
                sample = samples.get(live.specs[task].guest)
                used, share, spec = 0.0, None, live.specs[task]
                if sample is not None and node.telemetry is not None:
                    used = meter.use(sample.guest, node.telemetry.mono_ns, sample.cpu_s)
                    share = None if spec.share_cores is None else sample.share_cores
                    if (bank := bank_cores(live, task, sample)) is not None:
                        banks[live.job_id] = bank
                cap = cap_at(spec, live.status().yield_frac)
                guests.append(GuestPicture(live.job_id, task, live.state.phase.value, cap, used, share))
        cpus = node.facts.cpus if node.facts else 0.0
        memory_mib = node.facts.memory_mib if node.facts else 0
        drained = cluster.history.nodes[node.index].drained
        slot = "" if partitions is None else partitions.slot(node.index, _tasks(cluster, guests))
        nodes.append(NodePicture(node.name, node.online, cpus, memory_mib, held_mib, tuple(guests), drained, slot))
    return Snapshot(
        trace_s=trace_s,
        wall_s=wall_s,
        eta_s=wall_s * (1 - frac) / frac if frac > 0.05 else None,
        work_frac=frac,
        coming=phases.count(Phase.COMING),
        waiting=sum(not live.state.was_started for live in idle),
        running=len(active) - len(idle),
        paused=sum(live.state.was_started for live in idle),
        done=phases.count(Phase.DONE),
        failed=phases.count(Phase.FAILED),
        queue=tuple(live.job_id for live in idle),
        operations=tuple(
            OperationPicture(
                flight.action.verb.value,
                flight.action.job_id,
                tuple(dict.fromkeys(fleet.nodes[node].name for node in flight.action.nodes)),
                executor.now_s() - flight.begin_s,
            )
            for flight in executor.flights
        ),
        pending=executor.pending,
        reschedulings=len(penalties),
        penalty_s=sum(penalties),
        penalty_max_s=max(penalties, default=0.0),
        nodes=tuple(nodes),
        hold=cluster.history.standstill.hold,
        recovering=cluster.history.standstill.blind_since_s is not None,
        bank_cores=dict(sorted(banks.items())),
    )


def _tasks(cluster: Cluster, guests: Sequence[GuestPicture]) -> list[tuple[bool, bool]]:
    """Return for each guest whether its job is parallel, and whether the guest runs."""
    return [(cluster.jobs[guest.job].job.tasks > 1, guest.phase in _RUNS) for guest in guests]
