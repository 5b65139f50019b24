"""Handling of jobs when nodes are lost, return or get a new agent, and when guests fail."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence

from testbed.bus.failure_codes import Failure, known_code
from testbed.bus.guest_details import Failed
from testbed.control.clearing import Clearing, UnclearError
from testbed.control.cluster import Cluster, LiveJob
from testbed.control.executor import Executor
from testbed.control.planner import Verb
from testbed.control.recorder import Recorder
from testbed.errors import FailureCode, TestbedError
from testbed.lab.fences import FenceBook
from testbed.lab.fleet import Node
from testbed.lab.liveness import Change, Standing
from testbed.lab.operations import Operations
from testbed.run import events
from testbed.run.phases import Phase
from testbed.scheduling.workload.jobs import Job

_UNENFORCED = "nothing destroys its guests there while its agent does not work"
_MAKES = (Verb.START, Verb.RESTORE, Verb.MIGRATE)  # operations that create guests on new nodes


class Losses:
    """Fails or restarts the jobs that lose guests or images with a node or its agent.

    * Jobs on a suspect node wait.
    * Jobs that ran on a lost node fail or restart. They fail if no process of the node enforces fences while its agent
      does not work.
    * Jobs whose guests a restarted agent has not taken over fail or restart, too.
    * A saved job waits for a node with its images for as long as other work is left.

    `hear` listens to the ledger.
    """

    def __init__(
        self, cluster: Cluster, operations: Operations, executor: Executor, recorder: Recorder, *, restarts: bool,
        book: FenceBook | None = None,
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._operations = operations
        self._executor = executor
        self._recorder = recorder
        self._restarts = restarts
        self._book = book
        self._clearing = Clearing(operations, recorder, book, self._unclear)
        self._names = {guest: live for live in cluster.jobs.values() for guest in live.guests}  # includes earlier lives

    def hear(self, event: events.Event) -> None:
        """Act on the failure of a guest and on the restart of a job: see `Ledger.listen`."""
        match event:
            case events.Guest() if isinstance(event.typed, Failed):
                self._task_failed(self._cluster.jobs[event.job], _failure(event.task, event.typed))
            case events.Job(state="again"):
                live = self._cluster.jobs[event.job]
                self.know(live)

    def know(self, live: LiveJob) -> None:
        """Register the guests of a job that was submitted or restarted during the run."""
        self._names |= dict.fromkeys(live.guests, live)

    def node_changed(self, node: Node, change: Change) -> None:
        """Process a change of a node: it is suspect or lost, has returned, or has a new agent."""
        self._recorder.node(node.name, change.after, change.reason)
        if change.after is Standing.LOST:
            why, unclear = self._lost()[node.index], self._unclear([node.index])
            for live in self._cluster.active():
                if live.state.on_node(node.index) and unclear is not None:
                    self._recorder.fail(live, unclear)  # a withdrawn job fails at the end of its wait
                elif live.state.on_node(node.index):
                    self._lose_guests(live, why)
            self._clearing.wake()
        if change.after is Standing.ONLINE:
            self._clearing.wake()
            self._executor.aside(self._welcome(node), f"welcome node {node.name}")
        if change.restarted:
            why = Failure(FailureCode.AGENT_RESTARTED, f"node {node.name}: {change.reason}")
            for live in self._cluster.active():
                if live.state.on_node(node.index):
                    self._executor.aside(self._look_for(live, node.index, why), f"guests of job {live.job_id}")

    def _lost(self) -> dict[int, Failure]:
        """Return the nodes that are lost, with the reason."""
        nodes = enumerate(self._cluster.history.nodes)
        return {
            index: Failure(FailureCode.NODE_LOST, f"node {node.name} is lost ({node.reason})")
            for index, node in nodes
            if node.lost
        }

    def _unclear(self, nodes: Sequence[int]) -> Failure | None:
        """Return the reason for which guests on these unreachable nodes may run forever, None if they cannot."""
        lost = self._lost()
        if self._book is None or not (found := sorted(lost.keys() & set(nodes) & self._book.unenforced)):
            return None
        why = lost[found[0]]
        return Failure(why.code, f"{why.text}: not started elsewhere, as {_UNENFORCED}")

    async def _welcome(self, node: Node) -> None:
        """Synchronise with a node that has returned: stop obsolete guests, and check which images it still has."""
        try:
            guests, images = await self._operations.guests_at(node.index)
            strangers = self._strangers(node.index, guests)
            generations = {guest: self._names[guest].generation for guest in strangers}
            await self._operations.stop_guests([(node.index, guest) for guest in strangers], generations)
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

    async def _look_for(self, live: LiveJob, node: int, why: Failure) -> None:
        """Fail or restart a job unless a restarted agent has its guests.

        Guests that an operation in progress creates or moves are checked after the operation has failed or was
        repeated.
        """
        while (flight := self._executor.flight(live.job_id)) is not None and flight.action.verb in _MAKES:
            await asyncio.wait([flight.task])
        life = live.state.restarts
        with contextlib.suppress(TestbedError):  # a node that does not answer becomes suspect, or has a new agent
            guests, images = await self._operations.guests_at(node)
            state, flight = live.state, self._executor.flight(live.job_id)
            if state.restarts != life or (flight is not None and flight.action.verb in _MAKES):
                return
            saved = live.image_names(len(state.interruptions) + 1)
            for task in state.on_node(node):
                done = task in state.finished_tasks or (flight is not None and saved[task] in images)
                if live.guests[task] not in guests and not done and not state.ended and not state.withdrawn:
                    self._lose_guests(live, why)
                    return

    def _strangers(self, node: int, guests: frozenset[str]) -> frozenset[str]:
        """Return the guests of this run on a node whose jobs have meanwhile ended, failed or moved."""
        expected = {
            spec.guest
            for live in self._cluster.active()
            for spec in live.specs
            if node in live.state.places(spec.task) and not live.state.withdrawn
        }
        return (guests & self._names.keys()) - expected

    def _miss_images(self, live: LiveJob, node: Node, missing: set[str]) -> None:
        state = live.state
        if state.phase is not Phase.SAVED or state.saved_on is None:
            return
        images = zip(state.saved_on, state.images, strict=True)
        if any(where == node.index and image.name in missing for where, image in images):
            self._lose_guests(live, Failure(FailureCode.IMAGE_LOST, f"node {node.name} has its image no more"))

    def lose(self, live: LiveJob, why: Failure) -> None:
        """Fail or restart a job whose guests or images are gone."""
        self._lose_guests(live, why)

    def _lose_guests(self, live: LiveJob, why: Failure) -> None:
        if not self._restarts:
            self._recorder.fail(live, why)
        elif not live.state.withdrawn:
            self._recorder.job(live, "withdrawn", why.text)
            self._executor.aside(self._begin_again(live), f"clear away job {live.job_id}")

    def _task_failed(self, live: LiveJob, why: Failure) -> None:
        """Process the failure of a task; its cause may be the loss of another task's node that is not detected yet."""
        nodes = {node for task in range(len(live.specs)) for node in live.state.places(task)}
        if why.code is FailureCode.FENCED:
            self._lose_guests(live, why)
        elif len(nodes) > 1:
            self._executor.aside(self._judge(live, live.state.restarts, nodes, why), f"why did job {live.job_id} fail")
        else:
            self._recorder.fail(live, why)

    async def _judge(self, live: LiveJob, life: int, nodes: set[int], why: Failure) -> None:
        for node in sorted(nodes):
            with contextlib.suppress(TestbedError):
                await self._operations.guests_at(node)
        if live.state.restarts == life and not live.state.ended:
            self._recorder.fail(live, why)

    def take_over(self, taken_over_s: float) -> None:
        """Account for the fences of earlier controllers of a resumed run, and continue to clear withdrawn jobs.

        `taken_over_s` is the time at which the lease was taken, on the loop's clock. No job is withdrawn before this
        call.
        """
        for live in self._cluster.active():
            for spec in live.specs:
                for node in live.state.places(spec.task):
                    self._clearing.inherit(node, spec.guest, taken_over_s)
            if live.state.withdrawn:
                self._executor.aside(self._begin_again(live), f"clear away job {live.job_id}")

    def close(self) -> None:
        """Cancel all waits at the end of the run."""
        self._clearing.close()

    async def _begin_again(self, live: LiveJob) -> None:
        try:
            await self._executor.withdraw(live, self._clearing.clear)
        except UnclearError as error:
            self._recorder.fail(live, error.why, withdrawn=True)
            return
        images_on = self._whole_images(live)
        if images_on is None:
            await self._executor.drop_images(live)
        self._recorder.job(live, "again", "from its last image" if images_on else "from the beginning", images_on or ())

    def _whole_images(self, live: LiveJob) -> tuple[int, ...] | None:
        """Return nodes, by task, that hold the job's last images and are not lost; None if no node has an image.

        A node with a complete copy is preferred to a node to which the image was being copied.
        """
        found, nodes = [], self._cluster.history.nodes
        for image in live.state.images:
            whole = [node for node, name in sorted(live.state.whole_copies) if name == image.name]
            holders = [node for node, name in sorted(live.state.image_holders) if name == image.name]
            there = [node for node in (*whole, *holders) if not nodes[node].lost]
            if not there:
                return None
            found.append(there[0])
        return tuple(found) or None

    def _why_stranded(
        self, live: LiveJob, can_ever_run: Callable[[Job, int], bool], there: int, lost: Mapping[int, Failure]
    ) -> Failure | None:
        """Return why a job cannot be placed on the `there` nodes that are available; None if it can."""
        away = [lost[node] for node in live.state.saved_on or () if node in lost]
        if away:
            return Failure(away[0].code, f"its image is away: {away[0].text}")
        if not can_ever_run(live.job, there):
            return Failure(FailureCode.DOES_NOT_FIT, f"does not fit on the {there} nodes that are left")
        return None

    def sort_out(self, can_ever_run: Callable[[Job, int], bool], *, more: bool) -> None:
        """Find the jobs that cannot be placed while nodes are lost or drained.

        These jobs fail when no other work is left, and no node is suspect or drained: such a node may return. With
        `more`, jobs are still to be submitted.
        """
        self._executor.replicas.go_on_from_copies()
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
                if self._restarts and live.state.saved_on is not None and can_ever_run(live.job, there):
                    self._lose_guests(live, reason)
                else:
                    self._recorder.fail(live, reason)


def _failure(task: int, failed: Failed) -> Failure:
    """Return the reason of a guest's failure that its agent reports; agents of earlier versions report no code."""
    return Failure(known_code(failed.code) or FailureCode.GUEST_FAILED, f"task {task}: {failed.reason}")
