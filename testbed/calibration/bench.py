"""A lab made ready for experiments: its nodes, leased, and ways to command and to watch them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import msgspec

from testbed.bus.guest_details import GuestReport
from testbed.bus.lease import new_token
from testbed.bus.messages import (
    Calibrate,
    CapChange,
    GuestSpec,
    Native,
    NodeFacts,
    Ping,
    ProgramSpec,
    Watch,
)
from testbed.bus.numbers import Amount, Cores, Count, Positive
from testbed.bus.requests import Requester
from testbed.calibration.load import LoadMeter
from testbed.calibration.specimen import Specimen
from testbed.control.addresses import guest_addresses
from testbed.control.dedicated import core_rate
from testbed.control.ended_by import ended_by_error_of
from testbed.control.fleet import Fleet, rule_of
from testbed.control.labs import OpenLab, live_lab
from testbed.control.lease import hold_lease
from testbed.control.live_migration import LiveMigration
from testbed.control.local_agents import last_words
from testbed.control.migration_targets import migration_targets
from testbed.control.operations import Operations
from testbed.control.replies import ReplyError, ask
from testbed.control.scenario import BoxTable, Scenario
from testbed.errors import RunError, UserError, nearest

CORE_CPU_S = 0.5
_HOURS = 1e6  # of work, in seconds: a specimen is destroyed before it ends


class CapsChanged(msgspec.Struct, frozen=True):
    """When caps were set while guests were watched, in seconds since the watch began, and as they were read back."""

    begin_s: Amount
    end_s: Amount
    caps: dict[str, Cores]


class Watched(msgspec.Struct, frozen=True):
    """Samples of guests by their node's monotonic clock, from 0 on; all lists are as long as `t_s`."""

    t_s: list[Amount]
    cpu_s: dict[str, list[Amount]]
    units: dict[str, list[Count]]
    cap_changes: list[CapsChanged] = []


class NativeRun(msgspec.Struct, frozen=True):
    """What a program did on a node without a guest around it: that of its slowest rank."""

    units: Count
    elapsed_s: Positive
    cpu_s: Positive


class Bench:
    """Live nodes under this process's lease; `specimen` makes what is measured, and hears the events of its guests."""

    def __init__(self, scenario: Scenario, fleet: Fleet, tag: str, core_units_per_s: float) -> None:
        self.scenario = scenario
        self.fleet = fleet
        self.tag = tag
        self.operations = Operations(fleet, scenario.deadlines)
        self.facts: tuple[NodeFacts, ...] = tuple(fleet.facts(node.index) for node in fleet.nodes)
        self.core_units_per_s = core_units_per_s
        self.load = LoadMeter(scenario.box is not None or all(node.spawn for node in scenario.nodes))
        fleet.on_telemetry = self.load.hear
        self._numbers = itertools.count(1)
        self._addresses = guest_addresses((scenario.box or BoxTable()).guest_network)
        self._listeners: dict[str, Callable[[int, GuestReport], None]] = {}
        fleet.on_guest_event = self._hear

    @property
    def live_migration(self) -> LiveMigration:
        """Moves guests while they work, as a run does."""
        scenario = self.scenario
        facts = {node.name: fact for node, fact in zip(self.fleet.nodes, self.facts, strict=True)}
        return LiveMigration(
            self.fleet, self.operations, scenario.deadlines, scenario.migration, migration_targets(scenario, facts),
            lambda **_entry: None,
        )  # fmt: skip

    def specimen(
        self,
        *,
        memory_mib: int,
        cpu_cores: float,
        nodes: Sequence[int] = (0,),
        program: str = "",
        topology: str = "ring",
        message_bytes: int = 4096,
        iteration_s: float = 0.02,
        imbalance: str = "uniform",
        touched_frac: float = 1.0,
        work_s: float = _HOURS,
    ) -> Specimen:
        """Return a job of a task on each of `nodes`, not started yet.

        Without `program` that is `eatcpu`, for several tasks `patterns`. Its work takes `work_s` seconds of
        `cpu_cores` cores; what it comes to is verified if that is given. Each task has `memory_mib`, of whose ballast
        the part `touched_frac` is filled.
        """
        number = next(self._numbers)
        ranks = len(nodes) if program != "eatcpu" else 1
        work_units = max(1, round(self.core_units_per_s * cpu_cores * work_s))
        specs = tuple(
            GuestSpec(
                guest=f"dfrs-{self.tag}-s{number}-t{task}",
                run=self.tag,
                job=number,
                task=task,
                program=ProgramSpec(
                    name=program or ("patterns" if len(nodes) > 1 else "eatcpu"),
                    work_units=work_units,
                    units_per_iteration=min(work_units, max(1, round(self.core_units_per_s * cpu_cores * iteration_s))),
                    seed=number,
                    workers=max(1, int(-(-(cpu_cores - 1e-9) // 1))),
                    rank=task if ranks > 1 else 0,
                    ranks=ranks,
                    topology=topology,
                    imbalance=imbalance,
                    message_bytes=message_bytes,
                    touched_frac=touched_frac,
                ),
                cpu_cores=cpu_cores,
                memory_mib=memory_mib,
                address=next(self._addresses),
            )
            for task in range(len(nodes))
        )
        return Specimen(self, specs, tuple(nodes), verified=work_s < _HOURS)

    async def ping(self, node: int) -> float:
        """Return how long a command that does nothing takes, there and back, in seconds."""
        begin_s = asyncio.get_running_loop().time()
        await self.fleet.call(node, Ping(), self.scenario.deadlines.command_s)
        return asyncio.get_running_loop().time() - begin_s

    async def watch(
        self, node: int, guests: Sequence[str], every_s: float, for_s: float, caps: Sequence[CapChange] = ()
    ) -> Watched:
        """Sample CPU time and work units of guests on one node every `every_s` for `for_s`, changing caps meanwhile."""
        action = Watch(guests=tuple(guests), every_s=every_s, for_s=for_s, caps=tuple(caps))
        found = await ask(self.fleet, node, action, Watched, for_s + self.scenario.deadlines.command_s)
        for name, samples in (("cpu_s", found.cpu_s), ("units", found.units)):
            if {guest: len(samples.get(guest, ())) for guest in guests} != dict.fromkeys(guests, len(found.t_s)):
                expected = f"expected {len(found.t_s)} samples of each of {', '.join(guests)}"
                raise ReplyError(self.fleet.name(node), action, name, samples, expected)
        return found

    async def native(
        self,
        node: int,
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
        """Run a program on a node without a guest around it; `cap_cores` 0 is without a cap."""
        spec = ProgramSpec(
            name=program,
            work_units=max(1, round(self.core_units_per_s * cpu_cores * _HOURS)),
            units_per_iteration=max(1, round(self.core_units_per_s * cpu_cores * iteration_s)),
            seed=next(self._numbers),
            ranks=ranks,
            topology=topology,
            message_bytes=message_bytes,
        )
        action = Native(program=spec, seconds=seconds, cap_cores=cap_cores)
        return await ask(self.fleet, node, action, NativeRun, seconds + self.scenario.deadlines.command_s)

    def listen(self, guest: str, hear: Callable[[int, GuestReport], None]) -> None:
        """Hand on what nodes tell of a guest from now on."""
        self._listeners[guest] = hear

    def unlisten(self, guest: str) -> None:
        """Hand them on no more."""
        self._listeners.pop(guest, None)

    def check(self) -> None:
        """Raise `RunError` if a node is away: whatever is measured now would mean nothing."""
        away = [f"{node.name} ({node.reason})" for node in self.fleet.nodes if not node.online]
        if away:
            raise RunError(f"nodes away: {', '.join(away)}")

    def _hear(self, node: int, event: GuestReport) -> None:
        listener = self._listeners.get(event.guest)
        if listener is not None:
            listener(node, event)


@contextlib.asynccontextmanager
async def open_bench(
    scenario: Scenario, place: Path, open_lab: OpenLab = live_lab, nodes: Sequence[str] = ()
) -> AsyncIterator[Bench]:
    """Bring up the lab of a scenario (agents' logs go to `place`), lease it, and wait for its nodes.

    `nodes` are those to use, by name, all of them by default.

    At the end the lease is given back, whereupon agents destroy every guest that is left. Raises `UserError` when the
    lab is not there, or is driven by another controller.
    """
    known = [node.name for node in scenario.nodes]
    names = list(nodes) or known
    if strange := [name for name in names if name not in known]:
        raise UserError(f"node {strange[0]!r}: expected one of {', '.join(known)}{nearest(strange[0], known)}")
    tag = f"{os.getpid() % 65536:04x}{os.urandom(2).hex()}"
    async with open_lab(scenario, place, f"bench-{tag}") as bus:
        token = new_token()
        requester = Requester(bus, scenario.lab, f"bench-{tag}", lambda: token)
        fleet = Fleet(bus, scenario.lab, names, requester, rule_of(scenario.deadlines), scenario.nodes)
        holding = hold_lease(
            bus, scenario.lab, token, scenario.deadlines.lease_ttl_s, on_controller_loss=scenario.on_controller_loss
        )
        fleet.resign()  # what is measured while a node is away means nothing
        async with holding, requester:
            await fleet.open()
            try:
                await fleet.wait_for_all(scenario.deadlines.announce_s)
            except UserError as error:
                raise UserError(f"{error}{last_words(place)}") from error
            await fleet.wait_until_empty(scenario.deadlines.announce_s)
            core = await fleet.call(
                0, Calibrate(cpu_s=CORE_CPU_S), CORE_CPU_S * 10 + max(20.0, scenario.deadlines.command_s)
            )
            bench = Bench(scenario, fleet, tag, core_rate(names[0], core))
            watching = asyncio.create_task(fleet.watch(), name="watch nodes")
            try:
                async with ended_by_error_of(watching):
                    yield bench
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
