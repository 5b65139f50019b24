"""Second copies of the images of saved jobs on other nodes, as replacements after the loss of a node or an image.

Copies are made after a save, concurrently with operations on other jobs. A copy is journalled before it begins, so that
an incomplete copy is always removed together with the job's images.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections.abc import Callable, Coroutine, Iterator, Sequence

from testbed.bus.messages import FetchImage, ImageRef, Start
from testbed.bus.requests import CommandFailedError
from testbed.control.cluster import Cluster, LiveJob
from testbed.control.image_room import RoomLedger
from testbed.control.planner import PlannedAction
from testbed.control.recorder import Recorder
from testbed.errors import FailureCode, TestbedError
from testbed.lab.operations import Operations
from testbed.run import events
from testbed.run.image_entries import BEGUN, COMPLETE, FAILED, REPAIRED, USED
from testbed.run.phases import Phase

_MIB = 1 << 20
Aside = Callable[[Coroutine[None, None, None], str], None]


class Replicas:
    """Copies of the images of jobs: `count` second copies of each (`images.replicas`), 0 or 1.

    With `keeps`, the last complete images of a job stay until its next save is complete or it ends, so that a job that
    starts again loses only the work since its last save. `aside` runs a copy in the background.
    """

    def __init__(
        self, cluster: Cluster, operations: Operations, recorder: Recorder, room: RoomLedger, count: int,
        aside: Aside, *, keeps: bool,
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._operations = operations
        self._recorder = recorder
        self._room = room
        self._count = count
        self._aside = aside
        self.keeps = keeps and count > 0
        self._under_way: dict[int, set[asyncio.Task[None]]] = {}  # copies by job
        self._orders = itertools.count(1)
        self._lost: frozenset[int] = frozenset()

    def begin(self, live: LiveJob) -> None:
        """Copy the images of a saved job that have no second copy; copies in progress continue."""
        state = live.state
        if not self._count or state.phase is not Phase.SAVED or state.withdrawn or self._under_way.get(live.job_id):
            return
        for task, (home, image) in enumerate(zip(state.saved_on or (), live.images(), strict=True)):
            if len(self._whole(live, image.image)) <= self._count:
                self._begin(live, task, home, image)

    def _begin(self, live: LiveJob, task: int, home: int, image: ImageRef) -> None:
        node = self._place(home, image)
        if node is None:
            self._tell(live, task, image, FAILED, error="no other node can be reached and has space for it")
            return
        self._tell(live, task, image, BEGUN, node)
        order = -next(self._orders)  # numbers of operations are positive
        self._room.order(order, {node: _mib(image)})
        copying = asyncio.ensure_future(self._copy(live, task, home, node, image, order))
        self._under_way.setdefault(live.job_id, set()).add(copying)
        self._aside(self._wait(live.job_id, copying), f"copy image of job {live.job_id}")

    def _place(self, home: int, image: ImageRef) -> int | None:
        """Return the node with the most free image space that can take a copy; the first of equal nodes, or None."""
        found: tuple[float, int] | None = None
        for node in range(len(self._cluster.history.nodes)):
            open_there = node != home and self._cluster.reachable(node) and self._cluster.takes_guests((node,))
            if not open_there or self._room.short({node: _mib(image)}):
                continue
            free_mib = self._room.free_mib(node)
            room = math.inf if free_mib is None else float(free_mib)
            if found is None or room > found[0]:
                found = room, node
        return None if found is None else found[1]

    async def _copy(self, live: LiveJob, task: int, home: int, node: int, image: ImageRef, order: int) -> None:
        try:
            await self._operations.send_image(home, node, image, live.memory_mib)
        except TestbedError as error:
            self._tell(live, task, image, FAILED, node, str(error))
        else:
            self._tell(live, task, image, COMPLETE, node)
        finally:
            self._room.over(order, int(asyncio.get_running_loop().time() * 1e9))

    async def _wait(self, job_id: int, copying: asyncio.Task[None]) -> None:
        """Wait for a copy, and raise an error that is not the failure of a command."""
        await asyncio.wait((copying,))
        under_way = self._under_way.get(job_id, set())
        under_way.discard(copying)
        if not under_way:
            self._under_way.pop(job_id, None)
        if not copying.cancelled():
            copying.result()

    def cancel(self, live: LiveJob) -> None:
        """Cancel the copies of a job that are in progress."""
        for copying in self._under_way.get(live.job_id, ()):
            copying.cancel()

    def close(self) -> None:
        """Cancel all copies in progress."""
        for copying in itertools.chain(*self._under_way.values()):
            copying.cancel()

    def sources(self, live: LiveJob, targets: Sequence[int]) -> tuple[int, ...]:
        """Return the nodes, by task, from which to copy a job's images to `targets`.

        A target with a complete copy is its own source. Otherwise the source is the node on which the job is saved, or
        another node with a complete copy if that node has none any more.
        """
        found = []
        for home, target, image in zip(live.state.saved_on or (), targets, live.images(), strict=True):
            there = self._whole(live, image.image)
            found.append(target if target in there else home if home in there or not there else there[0])
        return tuple(found)

    def _others(self, live: LiveJob, image: str, but: set[int]) -> Iterator[int]:
        """Yield the reachable nodes that may have an image, except `but`; nodes with a complete copy come first."""
        whole = self._whole(live, image)
        holders = [holder for holder, name in sorted(live.state.image_holders) if name == image]
        for holder in dict.fromkeys((*whole, *holders)):
            if holder not in but and self._cluster.reachable(holder):
                yield holder

    async def repair(self, live: LiveJob, action: PlannedAction, failure: TestbedError, done: set[str]) -> bool:
        """Fetch a damaged or missing image from another node, after an operation failed because of it.

        Returns whether that succeeded. The repair is tried once per image; `done` has the names of all tried images.
        """
        order = failure.action if isinstance(failure, CommandFailedError) else None
        image = order.image if isinstance(order, Start | FetchImage) else None
        names = [each.image for each in live.images()]
        if failure.failure_code is not FailureCode.IMAGE_LOST or image is None or image.image not in names:
            return False
        task = names.index(image.image)
        target = action.nodes[task]
        bad = target if isinstance(order, Start) else self.sources(live, action.nodes)[task]
        for node in () if image.image in done else self._others(live, image.image, {target, bad}):
            done.add(image.image)
            with contextlib.suppress(TestbedError):
                await self._operations.send_image(node, target, image, live.memory_mib)
                self._tell(live, task, image, REPAIRED, target)
                return True
        return False

    def go_on_from_copies(self) -> None:
        """Switch saved jobs whose images were on a lost node to other copies, and begin second copies of these."""
        lost = frozenset(index for index, node in enumerate(self._cluster.history.nodes) if node.lost)
        changed, self._lost = lost != self._lost, lost
        for live in self._cluster.active() if lost else ():
            state = live.state
            if state.phase is not Phase.SAVED or state.flight is not None or state.withdrawn:
                continue
            used = False
            for task, (home, image) in enumerate(zip(state.saved_on or (), live.images(), strict=True)):
                there = self._whole(live, image.image)
                if home in lost and there:
                    self._tell(live, task, image, USED, there[0])
                    used = True
            if used or changed:  # otherwise the copy was already tried, and journalled
                self.begin(live)

    def older(self, live: LiveJob) -> tuple[str, ...]:
        """Return the names of images of earlier saves of a job that were kept."""
        present = {image.name for image in live.state.images}
        return tuple(sorted({name for _, name in live.state.image_holders if name not in present}))

    def kept_at(self, nodes: frozenset[int]) -> list[LiveJob]:
        """Return running jobs with images on these nodes that are kept only for a possible restart of the jobs."""
        return [
            live
            for live in (self._cluster.active() if self.keeps else ())
            if live.state.phase is Phase.RUNNING and live.state.present is None
            and any(node in nodes for node, _ in live.state.image_holders)
        ]  # fmt: skip

    def _whole(self, live: LiveJob, image: str) -> list[int]:
        """Return the nodes that are not lost and have a complete copy of an image."""
        nodes = self._cluster.history.nodes
        return sorted(node for node, name in live.state.whole_copies if name == image and not nodes[node].lost)

    def _tell(
        self, live: LiveJob, task: int, image: ImageRef, state: str, node: int | None = None, error: str | None = None
    ) -> None:  # fmt: skip
        self._recorder.journal(
            events.Replicated(
                *self._recorder.times(), job=live.job_id, task=task, image=image.image, state=state, node=node,
                error=error,
            )
        )  # fmt: skip
        if error is not None:
            self._recorder.say(f"    image of job {live.job_id} task {task} has no second copy: {error}")


def _mib(image: ImageRef) -> int:
    return -(-image.bytes // _MIB)
