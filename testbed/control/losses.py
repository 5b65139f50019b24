"""What becomes of jobs when nodes go, come back, or get another agent."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from testbed.control.cluster import Cluster, LiveJob
from testbed.control.executor import Executor
from testbed.control.fleet import Node
from testbed.control.liveness import Change, Standing
from testbed.control.operations import Operations
from testbed.control.recorder import Recorder
from testbed.errors import TestbedError
from testbed.failure_codes import Failure, FailureCode
from testbed.run import events
from testbed.run.phases import Phase


class Losses:
    """Jobs on a suspect node wait. Those that ran on a lost one, or under an agent that is gone, fail or start again.

    A saved job waits for a node that holds its images for as long as anything else is left to do. `on_failed(job,
    failure)` is called for a job that has failed, `on_change()` when there is something new to be decided,
    `on_new_life(job)` when a job starts again.
    """

    def __init__(
        self, cluster: Cluster, operations: Operations, executor: Executor, recorder: Recorder,
        on_new_life: Callable[[LiveJob], None], on_failed: Callable[[LiveJob, Failure], None],
        on_change: Callable[[], None], *, restarts: bool,
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._operations = operations
        self._executor = executor
        self._recorder = recorder
        self._on_new_life = on_new_life
        self._on_failed = on_failed
        self._on_change = on_change
        self._restarts = restarts
        self._names = {guest for live in cluster.jobs.values() for guest in live.guests}  # of all lives
        self._suspect: set[int] = set()
        self._lost: dict[int, Failure] = {}

    def node_changed(self, node: Node, change: Change) -> None:
        """A node went away, came back, or has another agent."""
        self._recorder.node(node.name, change.after, change.reason)
        self._cluster.node_reachable[node.index] = False
        self._cluster.node_available[node.index] = change.after is not Standing.LOST
        self._suspect.discard(node.index)
        self._lost.pop(node.index, None)
        if change.after is Standing.SUSPECT:
            self._suspect.add(node.index)
        if change.after is Standing.LOST:
            self._lost[node.index] = Failure(FailureCode.NODE_LOST, f"node {node.name} is lost ({change.reason})")
        if change.after is Standing.LOST or change.restarted:
            restarted = Failure(FailureCode.AGENT_RESTARTED, f"node {node.name}: {change.reason}")
            why = self._lost.get(node.index, restarted)
            for live in self._cluster.active():
                if any(node.index in live.places(task) for task in range(len(live.specs))):
                    self._lose_guests(live, why)
        if change.after is Standing.ONLINE:
            self._executor.aside(self._welcome(node), f"welcome node {node.name}")
        self._on_change()

    async def _welcome(self, node: Node) -> None:
        """A node is there again: remove what should not run there, and see which images it has still."""
        try:
            guests, images = await self._operations.guests_at(node.index)
            await self._operations.stop_guests(node.index, self._strangers(node.index, guests))
        except TestbedError as error:
            self._recorder.journal(events.Welcome(*self._recorder.times(), node=node.name, error=str(error)))
            missing: set[str] = set()
        else:
            held = {holder for live in self._cluster.active() for holder in live.image_holders}
            missing = {image for where, image in held if where == node.index} - images
        self._cluster.node_reachable[node.index] = node.online
        self._recorder.journal(
            events.Returned(
                *self._recorder.times(), node=node.name, reachable=node.online, missing=tuple(sorted(missing))
            )
        )
        for live in self._cluster.active() if missing else ():
            self._miss_images(live, node, missing)
        if node.online:
            self._executor.pump()
            self._on_change()

    def _strangers(self, node: int, guests: frozenset[str]) -> frozenset[str]:
        """Return guests of this run that should not be there: their jobs have ended, failed or moved meanwhile."""
        expected = {
            spec.guest
            for live in self._cluster.active()
            for spec in live.specs
            if node in live.places(spec.task) and not live.withdrawn
        }
        return (guests & self._names) - expected

    def _miss_images(self, live: LiveJob, node: Node, missing: set[str]) -> None:
        gone = {(index, name) for index, name in live.image_holders if index == node.index and name in missing}
        live.image_holders -= gone
        if live.phase is not Phase.SAVED or live.saved_on is None:
            return
        if any((where, image.image) in gone for where, image in zip(live.saved_on, live.images, strict=True)):
            self._lose_guests(live, Failure(FailureCode.IMAGE_LOST, f"node {node.name} has its image no more"))

    def _lose_guests(self, live: LiveJob, why: Failure) -> None:
        if not self._restarts:
            self._on_failed(live, why)
        elif not live.withdrawn:
            live.withdrawn, live.intended = why.text, None
            self._recorder.job(live, "withdrawn", why.text)
            self._executor.aside(self._begin_again(live), f"clear away job {live.job_id}")

    def task_failed(self, live: LiveJob, why: Failure) -> None:
        """A task says that it failed: that may come of the loss of another task's node, heard of only later."""
        nodes = {node for task in range(len(live.specs)) for node in live.places(task)}
        if len(nodes) > 1:
            self._executor.aside(self._judge(live, live.restarts, nodes, why), f"why did job {live.job_id} fail")
        else:
            self._on_failed(live, why)

    async def _judge(self, live: LiveJob, life: int, nodes: set[int], why: Failure) -> None:
        for node in sorted(nodes):
            with contextlib.suppress(TestbedError):
                await self._operations.guests_at(node)
        if live.restarts == life and not live.ended:
            self._on_failed(live, why)

    async def _begin_again(self, live: LiveJob) -> None:
        await self._executor.withdraw(live)
        images_on = self._whole_images(live)
        if images_on is None:
            await self._executor.drop_images(live)
        live.begin_again(images_on)
        self._names |= set(live.guests)
        self._on_new_life(live)
        self._recorder.job(live, "again", "from its last image" if images_on else "from the beginning", images_on or ())
        self._on_change()

    def _whole_images(self, live: LiveJob) -> tuple[int, ...] | None:
        """Return nodes, by task, that hold the job's last images and are not lost; None if one is nowhere."""
        found = []
        for image in live.images:
            holders = [node for node, name in sorted(live.image_holders) if name == image.image]
            there = [node for node in holders if node not in self._lost]
            if not there:
                return None
            found.append(there[0])
        return tuple(found) or None

    def sort_out(self, can_ever_run: Callable[[int, float, int], bool], *, more: bool) -> None:
        """Find the jobs that cannot be placed while nodes are lost; they fail when nothing else is left to do.

        `more` says that jobs are still to come.
        """
        nodes = sum(self._cluster.node_available)
        active = self._cluster.active()
        for live in active:
            lost = [self._lost[node] for node in live.saved_on or () if node in self._lost]
            why: Failure | None = None
            if lost:
                why = Failure(lost[0].code, f"its image is away: {lost[0].text}")
            elif not can_ever_run(live.job.tasks, live.job.mem_req_frac, nodes):
                why = Failure(FailureCode.DOES_NOT_FIT, f"does not fit on the {nodes} nodes that are left")
            if why != live.stranded:
                live.stranded = why
                self._recorder.stranded(live, why)
        stranded = [(live, live.stranded) for live in active if live.stranded is not None and not live.withdrawn]
        if not more and not self._suspect and len(stranded) == len(active):
            for live, reason in stranded:
                if (
                    self._restarts
                    and live.saved_on is not None
                    and can_ever_run(live.job.tasks, live.job.mem_req_frac, nodes)
                ):
                    self._lose_guests(live, reason)
                else:
                    self._on_failed(live, reason)
