"""The operator's orders on a run in progress: pause, continue, stop, close, and the drain and return of a node.

An order is journalled before it has any effect. A pause or a stop stops trace time at once, saves all running jobs, and
suspends decisions. After `continue` the jobs are restored on their old nodes with their old yields. Trace time
continues once all restorable jobs run again, so that their stretch does not include the restores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from testbed.control.clock import ReplayClock
from testbed.control.cluster import Cluster, LiveJob
from testbed.control.executor import Executor
from testbed.control.order_messages import Answer, Request
from testbed.control.planner import MoveRules, plan
from testbed.control.recorder import Recorder
from testbed.errors import RunError, nearest
from testbed.run import events
from testbed.run.phases import Phase
from testbed.run.standstill import Hold

_ENDED = "all jobs of the run have ended"
_DONE = {"pause": Hold.PAUSED, "continue": Hold.NONE, "stop": Hold.STOPPING}


class RunStoppedError(RunError):
    """The operator stopped the run; the running jobs are saved."""


class Orders:
    """Carries out orders. `hear` listens to the ledger; `wake` wakes the conductor, which then calls `hold`."""

    def __init__(
        self, cluster: Cluster, clock: ReplayClock, recorder: Recorder, executor: Executor, live: MoveRules,
        wake: Callable[[], None],
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._clock = clock
        self._recorder = recorder
        self._executor = executor
        self._live = live
        self._wake = wake
        self._standstill = cluster.history.standstill
        self._news = asyncio.Event()  # set, and replaced, when something has changed

    def hear(self, _event: events.Event) -> None:
        """Check the waiting orders again: see `Ledger.listen`."""
        if self._standstill.hold:
            self._wake()
        news, self._news = self._news, asyncio.Event()
        news.set()

    def hold(self) -> bool:
        """Return whether decisions must wait for the operator.

        Raises `RunStoppedError` once a run that is to be stopped has no operation in progress.
        """
        hold = self._standstill.hold
        if hold is Hold.RESUMING and not self._coming_back():
            times = self._recorder.times()
            stood_s = times[0] - (self._standstill.since_s or times[0])
            self._clock.go_on()  # before the entry is written, which takes time: the entry has this time
            self._recorder.journal(events.ClockStarted(*times, stood_still_s=round(stood_s, 6)))
            self._recorder.say(f"trace time continues after a pause of {stood_s:.1f} s")
        elif hold is Hold.STOPPING and not self._executor.flights:
            raise RunStoppedError(
                f"stopped by the operator: {self._saved()}; measured data is in {self._recorder.directory.path}"
            )
        return self._standstill.hold is not Hold.NONE

    def take_over(self) -> bool:
        """Continue the order that was in force when a controller was lost; return whether it stops trace time."""
        hold = self._standstill.hold
        if hold is Hold.RESUMING:
            self._plan({job for job, target in self._cluster.targets().items() if self._is_open(target.nodes)})
        elif hold is not Hold.NONE:
            self._plan(())
        return hold is not Hold.NONE

    async def carry_out(self, request: Request, by: str) -> Answer:
        """Execute an order, wait until its effect is in place, and return the outcome.

        An order whose effect is already in place changes nothing.
        """
        refusal = self._mistake(request)
        if refusal is not None:
            return self._answer(refusal, mistaken=True)
        if self._cluster.finished:
            return self._answer(_ENDED)
        if self._standstill.hold is Hold.STOPPING and request.order != "stop":
            return self._answer("the run is being stopped")
        changed = self._begin(request, by)
        try:
            async with asyncio.timeout(request.wait_s):
                while not self._is_done(request):
                    await self._news.wait()
        except TimeoutError:
            return self._late(request, changed=changed)
        return self._done(request, changed=changed)

    def _mistake(self, request: Request) -> str | None:
        """Return what is wrong with an order that no run can carry out."""
        if request.order in ("drain", "return"):
            names = [node.name for node in self._cluster.history.nodes]
            if request.node not in names:
                return f"no node {request.node!r}" + (
                    nearest(request.node or "", names) or f"; nodes: {', '.join(names)}"
                )
        elif request.node is not None:
            return f"{request.order} is for the whole run: expected no node"
        elif request.order == "close" and not self._cluster.history.is_served:
            return "the run has a trace: expected a served lab"
        return None

    # --- effects of an order ---------------------------------------------------------------------------------

    def _begin(self, request: Request, by: str) -> bool:
        """Begin an order; return whether it changes anything."""
        if request.order in ("drain", "return", "close"):
            if not self._changes(request):
                return False
            self._journal(request, by)
            return True
        hold = self._standstill.hold
        if hold is _DONE[request.order] or (hold is Hold.RESUMING and request.order == "continue"):
            return False
        if request.order == "continue":
            self._journal(request, by)
            self._plan({job for job, target in self._cluster.targets().items() if self._is_open(target.nodes)})
        else:
            self._stand_still(request, by)
            self._plan(())
        self._wake()
        return True

    def _changes(self, request: Request) -> bool:
        """Whether a drain, a return or a close would change anything."""
        if request.order == "close":
            return self._cluster.history.awaits_jobs
        return self._cluster.history.nodes[self._number(request.node)].drained is not (request.order == "drain")

    def _stand_still(self, request: Request, by: str) -> None:
        """Stop trace time, and journal the order with this time; the write of the entry itself takes time."""
        stood = self._clock.stands
        self._clock.stop()
        try:
            self._journal(request, by)
        except BaseException:  # also for cancellation: without its entry the order is not in force
            if not stood:
                self._clock.go_on()
            raise

    def _journal(self, request: Request, by: str) -> None:
        self._recorder.journal(events.Order(*self._recorder.times(), order=request.order, node=request.node, by=by))
        about = "" if request.node is None else f" of node {request.node}"
        self._recorder.say(f"order of the operator: {request.order}{about}")

    def _plan(self, running: Collection[int]) -> None:
        """Submit the plan that runs these jobs of the last decision and saves all others."""
        targets = {job: target for job, target in self._cluster.targets().items() if job in running}
        self._executor.submit(plan([live.status() for live in self._cluster.movable()], targets, self._live))

    def _is_open(self, nodes: Collection[int]) -> bool:
        """Whether guests can be placed on nodes now."""
        return self._cluster.takes_guests(nodes) and all(self._cluster.reachable(node) for node in nodes)

    # --- waiting for effects ---------------------------------------------------------------------------------

    def _coming_back(self) -> list[LiveJob]:
        """Return the jobs that were saved for the pause, can be restored, and are not restored yet."""
        return [live for live in self._cluster.placeable() if self._comes_back(live)]

    def _comes_back(self, live: LiveJob) -> bool:
        state, present = live.state, live.state.present
        if state.wanted is None or not self._is_open(state.wanted.nodes):
            return False
        if state.phase is Phase.SAVING:
            return True
        return present is not None and not present.is_rescheduling and present.back_s is None

    def _still_runs(self) -> list[LiveJob]:
        return [live for live in self._cluster.movable() if live.state.running_on is not None]

    def _is_done(self, request: Request) -> bool:
        """Whether the wait is over, with or without the effect."""
        if self._cluster.finished:
            return True
        hold = self._standstill.hold
        match request.order:
            case "pause" | "stop":
                return hold is not _DONE[request.order] or not self._executor.flights
            case "continue":
                return hold is not Hold.RESUMING
            case "drain":
                node = self._number(request.node)
                return not self._cluster.history.nodes[node].drained or not self._on_node(node)
        return True

    def _on_node(self, node: int) -> tuple[int, ...]:
        """Return the jobs with guests on a node, or with an operation that involves it."""
        return tuple(
            job.job
            for job in self._cluster.history.active.values()
            if job.on_node(node) or (job.flight is not None and node in job.flight.nodes)
        )

    def _done(self, request: Request, *, changed: bool) -> Answer:
        if self._cluster.finished and request.order != "close":
            return self._answer(_ENDED, changed=changed)
        hold = self._standstill.hold
        if request.order in ("drain", "return", "close"):
            return self._in_force(request, changed=changed)
        if hold is not _DONE[request.order]:
            return self._answer(f"the run is {hold or 'running'} by a later order", changed=changed)
        if request.order == "continue":
            return self._answer("the run continues", done=True, changed=changed)
        left = tuple(live.job_id for live in self._still_runs())
        what = "paused" if request.order == "pause" else "stopped"
        text = f"the run is {what}: {self._saved()}"
        return self._answer(text, done=not left, changed=changed, jobs=left)

    def _in_force(self, request: Request, *, changed: bool) -> Answer:
        """Return the answer to a drain, a return or a close that is in force."""
        match request.order:
            case "drain":
                drained = self._cluster.history.nodes[self._number(request.node)].drained
                text = f"node {request.node} is drained" if drained else f"node {request.node} was returned meanwhile"
                return self._answer(text, done=drained, changed=changed)
            case "return":
                return self._answer(f"node {request.node} takes guests", done=True, changed=changed)
        left = tuple(live.job_id for live in self._cluster.active())
        text = f"the lab takes no more jobs, and ends after {_jobs(left)}"
        return self._answer(text, done=True, changed=changed, jobs=left)

    def _late(self, request: Request, *, changed: bool) -> Answer:
        waits: tuple[int, ...]
        match request.order:
            case "drain":
                waits = self._on_node(self._number(request.node))
            case "continue":
                waits = tuple(live.job_id for live in self._coming_back())
            case _:
                waits = tuple(flight.action.job_id for flight in self._executor.flights)
        text = f"not done within {request.wait_s:g} s: the order stays in force, and waits for {_jobs(waits)}"
        return self._answer(text, changed=changed, jobs=waits)

    def _saved(self) -> str:
        """Return a text with the number of saved jobs, and the jobs that still run although they should be saved."""
        saved = sum(live.state.saved_on is not None for live in self._cluster.active())
        left = [live.job_id for live in self._still_runs()]
        more = f", {_jobs(left)} could not be saved (see the journal)" if left else ""
        return f"{saved} job{' is' if saved == 1 else 's are'} saved{more}"

    def _answer(
        self, text: str, *, done: bool = False, changed: bool = False, mistaken: bool = False,
        jobs: tuple[int, ...] = (),
    ) -> Answer:  # fmt: skip
        state = self._standstill.hold or "running"
        return Answer(done=done, text=text, state=state, changed=changed, mistaken=mistaken, jobs=jobs)

    def _number(self, name: str | None) -> int:
        return next(number for number, node in enumerate(self._cluster.history.nodes) if node.name == name)


def _jobs(ids: Collection[int]) -> str:
    return f"job{'' if len(ids) == 1 else 's'} {', '.join(map(str, sorted(ids)))}" if ids else "nothing"
