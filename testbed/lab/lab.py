"""The nodes of a lab under this process's lease, with methods to make jobs, command nodes and measure."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

from testbed.bus.messages import AnyAction, CapChange, GuestSpec, ListGuests, Native, NodeFacts, Ping
from testbed.bus.telemetry import GuestSample
from testbed.errors import RunError, UserError
from testbed.lab.addresses import guest_addresses
from testbed.lab.fleet import Fleet
from testbed.lab.guest_events import GuestEvents
from testbed.lab.guest_specs import program_spec
from testbed.lab.job import LabJob
from testbed.lab.live_nodes import LiveNodes
from testbed.lab.load import LoadMeter
from testbed.lab.node_refs import NodeRef, node_indexes
from testbed.lab.operations import Operations
from testbed.lab.outcomes import NativeRun, Watched
from testbed.lab.replies import Guests, ask
from testbed.scenario.schema import BoxTable, Scenario

SMALL_MIB = 96  # of memory, enough for an MPI rank
ENDLESS_S = 1e6  # of work: a job is stopped before its work ends


def addresses_of(scenario: Scenario) -> Iterator[str]:
    """Yield IP addresses for the guests of a scenario's lab, without end."""
    return guest_addresses((scenario.box or BoxTable()).guest_network)


class Lab:
    """The nodes of a lab under this process's lease, as `open_lab` returns them; `job` makes jobs on them.

    Arguments for a node are its name, or its index in the scenario.
    """

    def __init__(
        self, scenario: Scenario, fleet: Fleet, tag: str, core_units_per_s: float,
        addresses: Iterator[str] | None = None,
    ) -> None:  # fmt: skip
        self._core_units_per_s = core_units_per_s
        self._numbers = itertools.count(1)
        self.addresses = addresses if addresses is not None else addresses_of(scenario)
        self.fleet = fleet
        self.tag = tag
        self.operations = Operations(fleet, scenario.deadlines)
        self.load = LoadMeter(scenario.box is not None or all(node.spawn for node in scenario.nodes))
        self.guest_events = GuestEvents()
        facts = tuple(fleet.facts(node.index) for node in fleet.nodes)
        self._live = LiveNodes(scenario, fleet, facts, self.operations, self.guest_events)
        fleet.on_telemetry = self.load.hear
        fleet.on_guest_event = self.guest_events.hear

    @property
    def scenario(self) -> Scenario:
        """The scenario that describes the lab."""
        return self._live.scenario

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes, by index."""
        return self._live.names

    @property
    def facts(self) -> tuple[NodeFacts, ...]:
        """Facts of the nodes: cores, memory, driver, capabilities, versions."""
        return self._live.facts

    @property
    def core_units_per_s(self) -> float:
        """Work units of `eatcpu` per second of a core of the first node, measured when the lab was opened."""
        return self._core_units_per_s

    def job(
        self,
        *,
        tasks: int = 0,
        memory_mib: int = 0,
        cpu_cores: float = 0.0,
        nodes: Sequence[NodeRef] = (),
        program: str = "",
        topology: str = "ring",
        message_bytes: int = 4096,
        iteration_s: float = 0.02,
        imbalance: str = "uniform",
        touched_frac: float = 1.0,
        work_s: float = ENDLESS_S,
    ) -> LabJob:
        """Return a job that is not started yet, with one task on each of `nodes`.

        Without `nodes` the job has `tasks` tasks (by default one), on the nodes in turn. Each task has `memory_mib`; by
        default that is the least that its program and its node need. The fraction `touched_frac` of the memory's
        ballast is written. Without `cpu_cores` the tasks can use all cores of the smallest of their nodes. Without
        `program` a job of one task runs `eatcpu`, a larger job `patterns`. The work takes `work_s` seconds at full
        speed; its result is verified if `work_s` is given.
        """
        where = self._places(tasks, nodes)
        number = next(self._numbers)
        cores = cpu_cores or min(self.facts[node].cpus / sharing for node, sharing in Counter(where).items())
        mib = memory_mib or max(SMALL_MIB, *(self.facts[node].guest_floor_mib for node in where))
        members = len(where) if program != "eatcpu" else 1  # eatcpu sends no messages
        specs = tuple(
            GuestSpec(
                guest=f"dfrs-{self.tag}-s{number}-t{task}",
                run=self.tag,
                job=number,
                task=task,
                program=program_spec(
                    program or ("patterns" if members > 1 else "eatcpu"),
                    units_per_core_s=self.core_units_per_s,
                    cpu_cores=cores,
                    work_s=work_s,
                    iteration_s=iteration_s,
                    seed=number,
                    rank=task if members > 1 else 0,
                    ranks=members,
                    topology=topology,
                    imbalance=imbalance,
                    message_bytes=message_bytes,
                    touched_frac=touched_frac,
                ),
                cpu_cores=cores,
                memory_mib=mib,
                address=next(self.addresses),
            )
            for task in range(len(where))
        )
        return LabJob(self._live, specs, where, verified=work_s < ENDLESS_S)

    def job_of(self, specs: tuple[GuestSpec, ...]) -> LabJob:
        """Return a job of these guests, on the nodes in turn; its result is not verified."""
        # computing the expected checksum of endless work would take CPU time without end
        return LabJob(self._live, specs, self._places(len(specs), ()), verified=False)

    def _places(self, tasks: int, nodes: Sequence[NodeRef]) -> tuple[int, ...]:
        if not nodes:
            if tasks < 0:
                raise UserError(f"tasks = {tasks}: expected at least 1")
            return tuple(task % len(self.fleet.nodes) for task in range(max(1, tasks)))
        if tasks not in (0, len(nodes)):
            raise UserError(f"tasks = {tasks} with {len(nodes)} nodes: expected one node for each task")
        return node_indexes(self.nodes, nodes, len(nodes))

    async def command(self, node: NodeRef, action: AnyAction, deadline_s: float) -> dict[str, object]:
        """Send a bus command to a node, and return the result in its agent's reply."""
        return await self.fleet.call(self._live.index(node), action, deadline_s)

    async def guests_on(self, node: NodeRef) -> list[GuestSample]:
        """Return the samples of all guests that exist on a node."""
        return list((await ask(self.fleet, self._live.index(node), ListGuests(), Guests, self._live.command_s)).guests)

    async def ping(self, node: NodeRef) -> float:
        """Return the round-trip time of a command that does nothing, in seconds."""
        begin_s = asyncio.get_running_loop().time()
        await self.fleet.call(self._live.index(node), Ping(), self._live.command_s)
        return asyncio.get_running_loop().time() - begin_s

    async def watch(
        self, node: NodeRef, guests: Sequence[str], every_s: float, for_s: float, caps: Sequence[CapChange] = ()
    ) -> Watched:
        """Sample CPU time and work units of guests on one node every `every_s` for `for_s`, changing caps meanwhile."""
        return await self._live.watch(node, guests, every_s, for_s, caps)

    async def native(
        self,
        node: NodeRef,
        *,
        program: str,
        ranks: int,
        seconds: float,
        cap_cores: float = 0.0,
        topology: str = "ring",
        message_bytes: int = 4096,
        iteration_s: float = 0.02,
        cpu_cores: float = 1.0,
    ) -> NativeRun:
        """Run a program directly on a node, outside any guest; `cap_cores` = 0 is no cap."""
        spec = program_spec(
            program, units_per_core_s=self.core_units_per_s, cpu_cores=cpu_cores, work_s=ENDLESS_S,
            iteration_s=iteration_s, seed=next(self._numbers), ranks=ranks, topology=topology,
            message_bytes=message_bytes,
        )  # fmt: skip
        action = Native(program=spec, seconds=seconds, cap_cores=cap_cores)
        return await ask(self.fleet, self._live.index(node), action, NativeRun, seconds + self._live.command_s)

    def check(self) -> None:
        """Raise `RunError` if a node is offline, as measurements are invalid then."""
        away = [f"{node.name} ({node.reason})" for node in self.fleet.nodes if not node.online]
        if away:
            raise RunError(f"nodes offline: {', '.join(away)}")
