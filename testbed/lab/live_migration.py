"""Live migration of a job's guests; the controller confirms the outcome with the agents at both ends."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from testbed.bus.messages import Adopt, ExpectGuest, Migrate, Stop
from testbed.bus.migration import Destination
from testbed.bus.numbers import Bytes, Count, Seconds
from testbed.errors import FailureCode, RunError, TestbedError
from testbed.lab.job_guests import JobGuests
from testbed.lab.operations import Operations
from testbed.lab.replies import Nodes, ask
from testbed.scenario.schema import DeadlinesTable, MigrationTable

LATE_EVENT_S = 1.0  # time to wait for the event of a guest's end, if the guest is on neither node


class StaysError(RunError):
    """Guests could not migrate and still run on their source; the other guests of their job have arrived."""


class LostError(RunError):
    """A guest is on neither node of its migration, or its location is unknown."""

    failure_code = FailureCode.MIGRATE_FAILED


class Moved(msgspec.Struct, frozen=True):
    """The cost of one guest's live migration; without the source's report the times are upper bounds."""

    bytes: Bytes
    elapsed_s: Seconds
    downtime_s: Seconds
    rounds: Count = 0


@dataclass(frozen=True, slots=True)
class LiveMigration:
    """Migrates the guests of one job; `tell(**entry)` journals each outcome, which updates the job's state."""

    nodes: Nodes
    operations: Operations
    deadlines: DeadlinesTable
    limits: MigrationTable
    targets: Mapping[int, Destination]  # by node
    tell: Callable[..., None]

    async def move(self, live: JobGuests, targets: tuple[int, ...], yield_frac: float) -> list[Moved]:
        """Migrate the tasks that are not at their targets in parallel, then set the caps of the others.

        `live.state` is updated when each guest arrives. Raises `StaysError` if some guests stayed on their source (then
        all guests are set back to the old yield), `LostError` if a guest is on neither node without having ended.
        """
        before, cores = self._running_on(live), live.cap_cores(yield_frac)
        await self.operations.end_dividing(live, min(yield_frac, live.state.yield_frac))
        moving = [task for task in range(len(targets)) if before[task] != targets[task]]
        results = await asyncio.gather(
            *(self._member(live, task, targets[task], cores) for task in moving), return_exceptions=True
        )
        failures = [result for result in results if isinstance(result, BaseException)]
        failures.sort(key=lambda failure: isinstance(failure, StaysError))  # the most severe error first
        moved = [result for result in results if isinstance(result, Moved)]
        if failures:
            if isinstance(failures[0], StaysError) and (moved or self.operations.divides):
                await self._level_caps(live, live.cap_cores(live.state.yield_frac))
            raise failures[0]
        if self.operations.divides or (len(moving) < len(targets) and cores != live.cap_cores(live.state.yield_frac)):
            await self._level_caps(live, cores)
        return moved

    async def _level_caps(self, live: JobGuests, cores: float) -> None:
        """Set the caps of all guests to these cores, so that the guests of a job do not keep different yields."""
        for attempt in range(self.deadlines.tries):
            if attempt:
                await asyncio.sleep(0.2 * 2**attempt)
            try:
                await self.operations.set_running_cap(live, cores / live.cap_cores(1.0))
            except TestbedError:
                if live.state.finished_tasks:
                    return  # a guest that has ended has no cap
                if attempt + 1 == self.deadlines.tries:
                    raise
            else:
                return

    def _running_on(self, live: JobGuests) -> tuple[int, ...]:
        if live.state.running_on is None:
            raise RunError(f"job {live.job_id} does not run")
        return live.state.running_on

    async def _member(self, live: JobGuests, task: int, target: int, cap_cores: float) -> Moved | None:
        """Migrate one guest; None if it ended before or during the migration."""
        loop = asyncio.get_running_loop()
        source, spec = self._running_on(live)[task], live.specs[task]
        budget_s = self.limits.budget_s_per_gib * math.ceil(spec.memory_mib / 1024)
        begin_s = loop.time()
        moved: Moved | None = None
        failure: TestbedError | None = None
        if task not in live.state.finished_tasks:
            action = Migrate(
                guest=spec.guest,
                to=self._target(target),
                budget_s=budget_s,
                no_progress_s=self.limits.no_progress_s,
                generation=live.generation,
            )
            try:
                await self._announce(target, spec.guest, live.generation)
                moved = await ask(self.nodes, source, action, Moved, budget_s + self.deadlines.command_s)
            except TestbedError as error:
                failure = error
                await self._ask_both_ends(live, task, source, target, error)
            refusal = await self._adopt(live, task, target, cap_cores)
            if refusal is not None:
                raise LostError(f"{spec.guest} is at neither end of its migration: {failure or refusal}; {refusal}")
        if task in live.state.finished_tasks:
            self.tell(job=live.job_id, task=task, source=source, target=target, ended=True)
            return None
        elapsed_s = loop.time() - begin_s
        moved = moved or Moved(bytes=0, elapsed_s=elapsed_s, downtime_s=elapsed_s)
        self.tell(
            job=live.job_id, task=task, source=source, target=target, counted=failure is None,
            **msgspec.structs.asdict(moved),
        )  # fmt: skip
        return moved

    async def _announce(self, target: int, guest: str, generation: int) -> None:
        """Let the target enforce a guest's fence before the guest can arrive, if guests have fences."""
        fence = self.operations.fence(target, guest)
        if fence is not None:
            expected = ExpectGuest(guest=guest, generation=generation, fence=fence)
            await self.nodes.call(target, expected, self.deadlines.command_s)

    def _target(self, node: int) -> Destination:
        if node not in self.targets:
            raise RunError(f"node {self.nodes.name(node)}: no destination of live migrations to it is known")
        return self.targets[node]

    async def _ask_both_ends(self, live: JobGuests, task: int, source: int, target: int, error: TestbedError) -> None:
        """Query both nodes after a migration without a reported success.

        The source's reply decides. While the source still has the guest, the target can only have an incoming copy that
        never ran; that copy is destroyed, and `StaysError` is raised. Otherwise the method returns, and the caller
        tries to adopt the guest on the target.
        """
        guest = live.specs[task].guest
        here, there = await asyncio.gather(self._has(source, guest), self._has(target, guest))
        self.tell(
            job=live.job_id, task=task, source=source, target=target, error=str(error), at_source=here, at_target=there
        )
        if not here:
            return
        try:
            await self.nodes.call(target, Stop(guest=guest, generation=live.generation), self.deadlines.command_s)
        except TestbedError as resists:
            if there:
                raise LostError(f"{guest}: its copy at the target cannot be destroyed: {resists}") from resists
        raise StaysError(str(error)) from error

    async def _has(self, node: int, guest: str) -> bool | None:
        """Whether a node has the guest, once no command for the guest runs there; None if the node does not answer."""
        try:
            there, _ = await self.operations.guests_at(node, settled=(guest,))
        except TestbedError:
            return None
        return guest in there

    async def _adopt(self, live: JobGuests, task: int, target: int, cap_cores: float) -> TestbedError | None:
        """Adopt the guest at its target; return the error, or None, also when the guest has ended."""
        error: TestbedError | None = None
        for attempt in range(self.deadlines.tries):
            if attempt:
                await asyncio.sleep(LATE_EVENT_S * attempt)
            if task in live.state.finished_tasks:
                return None
            live.taken_over(task)
            try:
                spec = live.present_specs[task]
                fence = self.operations.fence(target, spec.guest)
                action = Adopt(spec=spec, cap_cores=cap_cores, verify=live.verified, fence=fence)
                await self.nodes.call(target, action, self.deadlines.command_s)
            except TestbedError as failure:
                error = failure
            else:
                return None
        await asyncio.sleep(LATE_EVENT_S)
        return None if task in live.state.finished_tasks else error
