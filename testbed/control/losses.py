"""Handling of jobs when nodes leave, return, or get another agent, and when guests fail."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

from testbed.bus.failure_codes import Failure, known_code
from testbed.bus.guest_details import Failed
from testbed.control.cluster import Cluster, LiveJob
from testbed.control.executor import Executor
from testbed.control.recorder import Recorder
from testbed.errors import FailureCode, TestbedError
from testbed.lab.fleet import Node
from testbed.lab.liveness import Change, Standing
from testbed.lab.operations import Operations
from testbed.run import events
from testbed.run.phases import Phase


class Losses:
    """Jobs on a suspect node wait. Jobs that ran on a lost node, or under an agent that is gone, fail or start again.

    A saved job waits for a node with its images for as long as other work is left. `hear` listens to the ledger.
    """

    def __init__(
        self, cluster: Cluster, operations: Operations, executor: Executor, recorder: Recorder, *, restarts: bool
    ) -> None:
        self._cluster = cluster
        self._operations = operations
        self._executor = executor
        self._recorder = recorder
        self._restarts = restarts
        self._names = {guest for live in cluster.jobs.values() for guest in live.guests}  # of all lives

    def hear(self, event: events.Event) -> None:
        """Act on a guest that failed, and on a job that runs again: see `Ledger.listen`."""
        match event:
            case events.Guest() if isinstance(event.typed, Failed):
                self._task_failed(self._cluster.jobs[event.job], _failure(event.task, event.typed))
            case events.Job(state="again"):
                self._names |= set(self._cluster.jobs[event.job].guests)

    def node_changed(self, node: Node, change: Change) -> None:
        """A node left, returned, or has another agent."""
        self._recorder.node(node.name, change.after, change.reason)
        if change.after is Standing.LOST or change.restarted:
            restarted = Failure(FailureCode.AGENT_RESTARTED, f"node {node.name}: {change.reason}")
            why = self._lost().get(node.index, restarted)
            for live in self._cluster.active():
                if live.state.on_node(node.index):
                    self._lose_guests(live, why)
        if change.after is Standing.ONLINE:
            self._executor.aside(self._welcome(node), f"welcome node {node.name}")

    def _lost(self) -> dict[int, Failure]:
        """Return the nodes that are lost, with the reason."""
        nodes = enumerate(self._cluster.history.nodes)
        return {
            index: Failure(FailureCode.NODE_LOST, f"node {node.name} is lost ({node.reason})")
            for index, node in nodes
            if node.lost
        }

    async def _welcome(self, node: Node) -> None:
        """A node has returned: remove guests that should not run there, and check which images it still has."""
        try:
            guests, images = await self._operations.guests_at(node.index)
            await self._operations.stop_guests(node.index, self._strangers(node.index, guests))
        except TestbedError as error:
            self._recorder.journal(events.Welcome(*self._recorder.times(), node=node.name, error=str(error)))
            missing: set[str] = set()
        else:
            held = {holder for live in self._cluster.active() for holder in live.state.image_holders}
            missing = {image for where, image in held if where == node.index} - images
        self._recorder.journal(
            events.Returned(
                *self._recorder.times(), node=node.name, reachable=node.online, missing=tuple(sorted(missing))
            )
        )
        for live in self._cluster.active() if missing else ():
            self._miss_images(live, node, missing)
        if node.online:
            self._executor.pump()

    def _strangers(self, node: int, guests: frozenset[str]) -> frozenset[str]:
        """Return guests of this run that should not be there: their jobs have ended, failed or moved meanwhile."""
        expected = {
            spec.guest
            for live in self._cluster.active()
            for spec in live.specs
            if node in live.state.places(spec.task) and not live.state.withdrawn
        }
        return (guests & self._names) - expected

    def _miss_images(self, live: LiveJob, node: Node, missing: set[str]) -> None:
        state = live.state
        if state.phase is not Phase.SAVED or state.saved_on is None:
            return
        images = zip(state.saved_on, state.images, strict=True)
        if any(where == node.index and image.name in missing for where, image in images):
            self._lose_guests(live, Failure(FailureCode.IMAGE_LOST, f"node {node.name} has its image no more"))

    def _lose_guests(self, live: LiveJob, why: Failure) -> None:
        if not self._restarts:
            self._recorder.fail(live, why)
        elif not live.state.withdrawn:
            self._recorder.job(live, "withdrawn", why.text)
            self._executor.aside(self._begin_again(live), f"clear away job {live.job_id}")

    def _task_failed(self, live: LiveJob, why: Failure) -> None:
        """A task reports a failure, possibly because of the loss of another task's node that is detected only later."""
        nodes = {node for task in range(len(live.specs)) for node in live.state.places(task)}
        if len(nodes) > 1:
            self._executor.aside(self._judge(live, live.state.restarts, nodes, why), f"why did job {live.job_id} fail")
        else:
            self._recorder.fail(live, why)

    async def _judge(self, live: LiveJob, life: int, nodes: set[int], why: Failure) -> None:
        for node in sorted(nodes):
            with contextlib.suppress(TestbedError):
                await self._operations.guests_at(node)
        if live.state.restarts == life and not live.state.ended:
            self._recorder.fail(live, why)

    async def _begin_again(self, live: LiveJob) -> None:
        await self._executor.withdraw(live)
        images_on = self._whole_images(live)
        if images_on is None:
            await self._executor.drop_images(live)
        self._recorder.job(live, "again", "from its last image" if images_on else "from the beginning", images_on or ())

    def _whole_images(self, live: LiveJob) -> tuple[int, ...] | None:
        """Return nodes, by task, that hold the job's last images and are not lost; None if an image has none."""
        found, nodes = [], self._cluster.history.nodes
        for image in live.state.images:
            holders = [node for node, name in sorted(live.state.image_holders) if name == image.name]
            there = [node for node in holders if not nodes[node].lost]
            if not there:
                return None
            found.append(there[0])
        return tuple(found) or None

    def _why_stranded(
        self, live: LiveJob, can_ever_run: Callable[[int, float, int], bool], there: int, lost: Mapping[int, Failure]
    ) -> Failure | None:
        """Return why a job cannot be placed on the `there` nodes that are available; None if it can."""
        away = [lost[node] for node in live.state.saved_on or () if node in lost]
        if away:
            return Failure(away[0].code, f"its image is away: {away[0].text}")
        if not can_ever_run(live.job.tasks, live.job.mem_req_frac, there):
            return Failure(FailureCode.DOES_NOT_FIT, f"does not fit on the {there} nodes that are left")
        return None

    def sort_out(self, can_ever_run: Callable[[int, float, int], bool], *, more: bool) -> None:
        """Find the jobs that cannot be placed while nodes are lost or drained.

        They fail when no other work is left, and no node is suspect or drained, as such a node may return. `more`: jobs
        are still to be submitted.
        """
        nodes = self._cluster.history.nodes
        there, lost = sum(node.available for node in nodes), self._lost()
        may_return = any(node.standing == Standing.SUSPECT or node.drained for node in nodes)
        active = self._cluster.active()
        stranded: list[tuple[LiveJob, Failure]] = []
        for live in active:
            why = self._why_stranded(live, can_ever_run, there, lost)
            state = live.state
            known = None if state.stranded_code is None else (state.stranded_code, state.stranded)
            if known != (None if why is None else (why.code.value, why.text)):
                self._recorder.stranded(live, why)
            if why is not None and not state.withdrawn:
                stranded.append((live, why))
        if not more and not may_return and len(stranded) == len(active):
            for live, reason in stranded:
                if (
                    self._restarts
                    and live.state.saved_on is not None
                    and can_ever_run(live.job.tasks, live.job.mem_req_frac, there)
                ):
                    self._lose_guests(live, reason)
                else:
                    self._recorder.fail(live, reason)


def _failure(task: int, failed: Failed) -> Failure:
    """Return why a guest failed, as its agent reports it; agents of earlier versions report no code."""
    return Failure(known_code(failed.code) or FailureCode.GUEST_FAILED, f"task {task}: {failed.reason}")
