"""Takeover of the nodes by a resumed controller: every node reports its guests and images.

* Guests that continued to run are adopted, and their caps are set.
* Guests and images that belong to no job any more are removed.
* Jobs whose guests are gone fail or restart, as the scenario specifies.
* Operations that were in progress continue.

Trace time continues after all of this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from testbed.bus.failure_codes import Failure
from testbed.bus.telemetry import GuestSample
from testbed.control.cluster import Cluster, LiveJob
from testbed.control.executor import Executor
from testbed.control.losses import Losses
from testbed.control.recorder import Recorder
from testbed.errors import FailureCode, TestbedError
from testbed.lab.fleet import Fleet, Node
from testbed.lab.liveness import Standing
from testbed.lab.operations import Operations
from testbed.lab.replies import Guests
from testbed.run import events
from testbed.run.phases import Phase


class Recovery:
    """Takes over the nodes of a resumed run, with the components of its conductor.

    `leased_s` is the time at which the lease was taken, on the loop's clock. Before it an earlier controller may have
    renewed fences.
    """

    def __init__(
        self, cluster: Cluster, fleet: Fleet, operations: Operations, executor: Executor, losses: Losses,
        recorder: Recorder, run_tag: str, leased_s: float,
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._fleet = fleet
        self._operations = operations
        self._executor = executor
        self._losses = losses
        self._recorder = recorder
        self._leased_s = leased_s
        self._prefix = f"dfrs-{run_tag}-"

    async def run(self) -> None:
        """Adopt the guests, continue the operations that were in progress, and journal that the run has recovered."""
        found = await asyncio.gather(*(self._ask(node) for node in self._fleet.nodes))
        there = {node: guests for node, guests in enumerate(found) if guests is not None}
        samples = {sample.guest: sample for guests in there.values() for sample in guests.guests}
        self._take_progress(samples)
        for node, guests in there.items():
            await self._tidy(node, guests)
        carried_on = self._executor.carry_on()
        self._losses.take_over(self._leased_s)
        self._lose(there)
        adopted = await self._adopt(samples)
        for live in self._cluster.active():
            if live.state.phase is Phase.SAVED:
                self._executor.replicas.begin(live)
        history = self._cluster.history
        times = self._recorder.times()
        blind_s = times[0] - (history.standstill.blind_since_s or times[0])
        self._recorder.journal(
            events.Recovered(*times, blind_s=round(blind_s, 6), adopted=adopted, carried_on=carried_on)
        )
        self._recorder.say(
            f"the run continues after {blind_s:.1f} s without a controller; {len(adopted)} jobs ran meanwhile, "
            f"{len(carried_on)} operations continue"
        )

    async def _ask(self, node: Node) -> Guests | None:
        """Return the guests and images of a node, None if it does not answer."""
        known = self._cluster.history.nodes[node.index]
        found: Guests | None = None
        if node.online:
            try:
                found = await self._operations.there(node.index)
            except TestbedError as error:
                self._recorder.journal(events.Welcome(*self._recorder.times(), node=node.name, error=str(error)))
        if found is None:
            if known.standing == Standing.ONLINE:
                self._recorder.node(node.name, Standing.SUSPECT, node.reason)
            return None
        if known.standing != Standing.ONLINE:
            self._recorder.node(node.name, Standing.ONLINE, "it is there")
        held = {holder for live in self._cluster.active() for holder in live.state.image_holders}
        missing = {image for where, image in held if where == node.index} - set(found.images)
        self._recorder.journal(
            events.Returned(*self._recorder.times(), node=node.name, reachable=True, missing=tuple(sorted(missing)))
        )
        return found

    def _take_progress(self, samples: Mapping[str, GuestSample]) -> None:
        for live in self._cluster.active():
            for spec in live.specs:
                sample = samples.get(spec.guest)
                if sample is not None:
                    live.progress.advance(spec.task, sample.units_done)
            live.progress.at_s = self._recorder.now_s()

    async def _tidy(self, node: int, there: Guests) -> None:
        """Remove guests and images of this run that belong to no job any more."""
        guests = {sample.guest for sample in there.guests if sample.guest.startswith(self._prefix)}
        generations = {guest: live.generation for live in self._cluster.jobs.values() for guest in live.guests}
        strangers = guests - self._expected(node)
        await self._operations.stop_guests(
            [(node, guest) for guest in strangers], {guest: generations.get(guest, 0) for guest in strangers}
        )
        held = {
            name for live in self._cluster.jobs.values() for where, name in live.state.image_holders if where == node
        }
        images = {image for image in there.images if image.startswith(self._prefix)} - held
        await self._operations.drop_images((node, image) for image in images)

    def _expected(self, node: int) -> set[str]:
        return {
            spec.guest
            for live in self._cluster.jobs.values()
            for spec in live.specs
            if node in live.state.places(spec.task)
        }

    def _lose(self, there: Mapping[int, Guests]) -> None:
        """Fail or restart the jobs of which a guest or an image is gone from a node that answered."""
        for live in self._cluster.active():
            state = live.state
            if state.withdrawn or state.flight is not None:
                continue
            gone = self._gone(live, there)
            if gone is not None:
                name = self._fleet.name(gone)
                code = FailureCode.IMAGE_LOST if state.phase is Phase.SAVED else FailureCode.GUEST_FAILED
                what = "has its image no more" if state.phase is Phase.SAVED else "has its guest no more"
                self._losses.lose(live, Failure(code, f"node {name} {what}, after a time without a controller"))

    def _gone(self, live: LiveJob, there: Mapping[int, Guests]) -> int | None:
        """Return a node that answered and lacks a guest or an image of the job, None if there is no such node."""
        state = live.state
        for task, spec in enumerate(live.specs):
            if state.running_on is not None and state.phase is Phase.RUNNING:
                node = state.running_on[task]
                held = {sample.guest for sample in there[node].guests} if node in there else {spec.guest}
                if spec.guest not in held and task not in state.finished_tasks and task not in state.unchecked:
                    return node
            elif state.saved_on is not None and state.phase is Phase.SAVED and task < len(state.images):
                node, image = state.saved_on[task], state.images[task].name
                if node in there and image not in there[node].images:
                    return node
        return None

    async def _adopt(self, samples: Mapping[str, GuestSample]) -> tuple[int, ...]:
        """Take over the guests of running jobs without an operation in progress; return the ids of these jobs."""
        running = [
            live
            for live in self._cluster.active()
            if live.state.phase is Phase.RUNNING and live.state.flight is None and not live.state.withdrawn
            and all(self._cluster.reachable(node) for node in live.state.running_on or ())
        ]  # fmt: skip
        outcomes = await asyncio.gather(*(self._adopt_one(live, samples) for live in running))
        return tuple(live.job_id for live, done in zip(running, outcomes, strict=True) if done)

    async def _adopt_one(self, live: LiveJob, samples: Mapping[str, GuestSample]) -> bool:
        try:
            await self._operations.adopt(live, samples, live.state.yield_frac)
        except TestbedError as error:
            if live.state.active and len(live.state.finished_tasks) < len(live.specs):
                code = error.failure_code or FailureCode.GUEST_FAILED
                self._losses.lose(live, Failure(code, f"its guests could not be taken over: {error}"))
            return False
        return True
