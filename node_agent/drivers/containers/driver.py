"""Guests as containers: the programs of the process driver, each in a container of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import xxhash

from node_agent.drivers.builtin import DOCKER
from node_agent.drivers.caps.protocol import Caps, Weights
from node_agent.drivers.containers import frozen
from node_agent.drivers.containers.caps import ContainerCaps
from node_agent.drivers.containers.child import ContainerChild
from node_agent.drivers.containers.engine import WHOLE_FOLDER, Engine, Found
from node_agent.drivers.containers.likeness import Likeness, likeness_of
from node_agent.drivers.containers.weights import ContainerWeights, remove_left
from node_agent.drivers.native import rank_spec
from node_agent.drivers.process import ProcessDriver
from node_agent.drivers.procs.enclosure import Enclosure
from node_agent.drivers.procs.guest import ProcessGuest
from node_agent.drivers.procs.guest_record import GuestRecord, State
from node_agent.drivers.procs.keeping import Kept, Left
from node_agent.drivers.protocol import DriverError, DriverEvent, DriverFacts, ImageKind, NodeBudget, SaveReport
from node_agent.drivers.sealed import seal, written_back
from testbed.bus.messages import GuestSpec, ProgramSpec
from testbed.errors import UserError

_SOCKET, _ROOM = "c.sock", ".g"  # of a guest, in a folder that only its container sees
SAVES = ("program", "criu")
PARENT = "/docker"  # where engines make the groups of containers by default
_PATH = re.compile(r"(/[\w.@:-]+)+", re.ASCII)
TRIALS = 3
TRIAL = ProgramSpec("eatcpu", 10**12, 200, 1)
TRIAL_MIB = 64
TRIAL_WITHIN_S = 60.0
_log = logging.getLogger(__name__)


class DockerDriver(ProcessDriver):
    """One guest = one container of the engine at `url`, by default the one that the environment or the system names.

    A container has this machine's programs and libraries read-only and the folders of its node. Its memory limit is the
    guest's memory, and it has no capability. Its cap is the engine's quota. It has the CPUs of its agent. Ranks of MPI
    jobs use the machine's own network and shared memory.

    Containers of guests with shares are in a control group of the node, which the agent makes in `cgroup_parent` and
    which bounds them together. The engine makes the containers' groups there if its cgroup driver is cgroupfs.

    Guests are saved by their programs' own checkpoints (`save` is `program`, by default). With `save` = `criu`, guests
    outside MPI jobs are saved whole by CRIU, if a trial save and restore succeeds when the driver opens. Guests of MPI
    jobs are still saved by their programs. CRIU runs as root and reads files that another node wrote: use it only
    between nodes that trust each other. The kind of `images` states which way is in use.

    Containers outlive a killed agent, as processes do: the keeper has their channels, and kills them by descriptors of
    their commands. The engine keeps their exit codes until they are removed, which is after the agent has settled their
    end. A guest that CRIU was saving is destroyed. So are whole containers if the next agent does not have `save` =
    `criu`.
    """

    name = "docker"
    traits = DOCKER.traits

    def __init__(self, url: str | None = None, save: str = "program", cgroup_parent: str = PARENT) -> None:
        super().__init__()
        if save not in SAVES:
            raise UserError(f"driver docker: save = {save!r}: expected {' or '.join(SAVES)}")
        if not _PATH.fullmatch(cgroup_parent) or {".", ".."} & set(cgroup_parent.split("/")):
            expected = f"the absolute path of a control group, such as {PARENT}"
            raise UserError(f"driver docker: cgroup_parent = {cgroup_parent!r}: expected {expected}")
        self._cgroup_parent = cgroup_parent
        self._weights: ContainerWeights | str = "the driver is not open"
        self._url = url
        self._engine = Engine(url)
        self._container_caps: ContainerCaps | None = None
        self._save = save
        self.why_not_whole = "the driver is not open"
        self._own: Likeness | None = None  # of a container of ours, known from the trial
        self._wholes: set[str] = set()  # guests whose containers can be saved whole
        self._found: dict[str, Found] = {}  # containers of an earlier agent
        self._removing: set[asyncio.Task[None]] = set()
        self._limiting: set[asyncio.Task[None]] = set()

    async def open(self, budget: NodeBudget, tell: Callable[[DriverEvent], None]) -> DriverFacts:
        """See `Driver.open`: containers of an earlier agent that its keeper does not keep are removed."""
        budget.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        version = await self._engine.open(budget)
        await self._engine.make_image()
        await asyncio.to_thread(frozen.sweep, budget.image_dir)
        facts = await super().open(budget, tell)
        self.why_not_whole = "its agent has no option save=criu" if self._save == "program" else await self._try_whole()
        if self.why_not_whole:
            _log.info("guests are saved by their programs: %s", self.why_not_whole)
        return replace(facts, versions={**facts.versions, "docker": version})

    async def clear(self, found: Sequence[tuple[GuestRecord, Left]]) -> None:
        """See `ProcessDriver.clear`: a guest needs its container, and the folder that the container sees."""
        kept = {left.key for _, left in found}
        if swept := await self._engine.sweep(kept):
            _log.warning("removed containers that an earlier agent left: %s", ", ".join(swept))
        self._found = await self._engine.found()
        folder = self._there().state_dir
        rooms = {(folder / self.socket_name(record.spec.guest)).parent for record, _ in found}
        for room in set(folder.glob(f"*{_ROOM}")) - rooms:
            await asyncio.to_thread(shutil.rmtree, room, ignore_errors=True)

    async def running(self, guest: ProcessGuest, record: GuestRecord, left: Left) -> ContainerChild | None:
        """See `ProcessDriver.running`."""
        found = self._found.get(left.key)
        if guest.kept is None or self._container_caps is None or (found is None and not record.made):
            return None
        pid = 0
        if found is not None:
            pid = found.pid
            self._container_caps.enclose(found.guest, left.key)
            if found.whole:
                self._wholes.add(found.guest)
        child = self._child(guest.kept, pid, guest.log.write, left.channels.get("program"))
        if child.ended:
            await asyncio.shield(child.exited)
        return child

    async def _adopt(self, record: GuestRecord, left: Left) -> None:
        name, found = record.spec.guest, self._found.get(left.key)
        if self._keeping is not None and (name == self._trial_name or (found and found.whole and self._save != "criu")):
            left.close()
            self._keeping.adopt(left).drop()
            await self._engine.remove(left.key)
            return
        await super()._adopt(record, left)
        guest = self._guests.get(name)
        if guest is not None and guest.saving is not None:
            limiting = asyncio.create_task(self._limit(guest, guest.saving), name=f"limit {name}")
            self._limiting.add(limiting)
            limiting.add_done_callback(self._limiting.discard)
        elif guest is not None:
            await self._limit(guest)  # its last agent may have begun a save, which raises the limit

    async def _limit(self, guest: ProcessGuest, saving: asyncio.Task[SaveReport] | None = None) -> None:
        """Set the memory limit of a guest that may continue, once its save has ended or was cancelled."""
        if saving is not None:
            await asyncio.wait((saving,))
        container = self._container_caps and self._container_caps.container(guest.spec.guest)
        if container and self._guests.get(guest.spec.guest) is guest:
            try:
                await self._engine.limit_memory(container, guest.spec.memory_mib)
            except DriverError as error:  # it may be ending; a limit that is too high does no harm
                _log.warning("guest %s: its memory limit was not set again: %s", guest.spec.guest, error)

    @property
    def _trial_name(self) -> str:
        budget = self._there()
        return f"{budget.prefix}{budget.node}-criu"

    @property
    def images(self) -> ImageKind:
        """See `Saves.images`; CRIU does not verify what it reads."""
        return super().images if self.why_not_whole else ImageKind("criu", verified=False)

    async def _try_whole(self) -> str:
        """Save and restore a small guest several times; return the reason if that fails, else an empty string."""
        if not self._engine.experimental:
            return 'the engine has no {"experimental": true} in its daemon.json'
        self.why_not_whole = ""
        budget, tell = self._there(), self._tell
        self._tell = lambda _driver_event: None
        name = self._trial_name
        image = budget.image_dir / f"{name.lower()}.img"
        spec = rank_spec(name, TRIAL, 0, TRIAL_MIB)
        try:
            async with asyncio.timeout(TRIAL_WITHIN_S):
                await self.start(spec, 1.0)
                for _ in range(TRIALS):
                    before = await self.hold(name)
                    await self.save(name, before, image)
                    await self.restore(spec, 1.0, image)
                    after = await self.hold(name)
                    if before is None or after is None or after < before:
                        return f"a guest saved at iteration {before} came back at {after}"
                    await self.release(name)
        except DriverError as error:
            return str(error)
        except TimeoutError:
            return f"a guest was not saved and restored {TRIALS} times within {TRIAL_WITHIN_S:g} s"
        finally:
            await self.stop(name)
            self.settled(name)
            image.unlink(missing_ok=True)
            self._tell = tell
        return ""

    async def sweep(self, budget: NodeBudget, *, dry_run: bool = False) -> list[str]:
        """See `Driver.sweep`: containers are known by their labels."""
        engine = Engine(self._url)
        await engine.open(budget)
        try:
            guests = await engine.sweep(dry_run=True)
            found = [*(f"guest {guest}" for guest in guests), *await super().sweep(budget, dry_run=True)]
            if not dry_run:
                await engine.sweep()  # also ends processes that were just found
                await super().sweep(budget)
                mounts = await asyncio.to_thread(Path("/proc/self/mountinfo").read_text, encoding="utf-8")
                await asyncio.to_thread(remove_left, self._cgroup_parent, self._group_prefix(budget), mounts)
        finally:
            engine.close()
        return found

    async def open_caps(self, group: str) -> Caps:
        """See `ProcessDriver.open_caps`; programs on the node itself have the caps of the process driver."""
        self._container_caps = ContainerCaps(self._engine, await super().open_caps(group))
        self._weights = await self._open_weights(group, self._container_caps)
        return self._container_caps

    @property
    def weights(self) -> Weights | str:
        """See `ProcessDriver.weights`."""
        return self._weights

    async def _open_weights(self, group: str, caps: ContainerCaps) -> ContainerWeights | str:
        """Return the weights of containers, ready to use, or why there are none."""
        if self._engine.group_driver != "cgroupfs":
            return (
                f"nothing bounds all containers of this node together: the engine's cgroup driver is "
                f"{self._engine.group_driver}: expected cgroupfs"
            )
        try:
            mounts = await asyncio.to_thread(Path("/proc/self/mountinfo").read_text, encoding="utf-8")
            await asyncio.to_thread(remove_left, self._cgroup_parent, self._group_prefix(self._there()), mounts)
            weights = ContainerWeights(f"{self._cgroup_parent}/{group}", caps.group, mounts)
            await weights.open(self._there().cpus)
        except OSError as error:
            return f"control groups in {self._cgroup_parent}: {error}"
        self._engine.shared_group = weights.path
        return weights

    def _group_prefix(self, budget: NodeBudget) -> str:
        return f"{budget.prefix}{budget.node}-"

    async def save(self, guest: str, at: int | None, image: Path) -> SaveReport:
        """See `Saves.save`; an image in the machine's memory counts as memory of the container that writes it."""
        there = self._get(guest)
        container = self._container_caps and self._container_caps.container(guest)
        if not container or there.state is not State.HELD:
            return await super().save(guest, at, image)
        if guest in self._wholes:
            return await there.save_whole(lambda: self._write(there.spec, container, image))
        await self._engine.limit_memory(container, 2 * there.spec.memory_mib)  # the image may be in memory, too
        try:
            return await super().save(guest, at, image)
        finally:
            if there.state is State.HELD:  # it was not saved and continues
                await self._engine.limit_memory(container, there.spec.memory_mib)

    async def stop(self, guest: str) -> None:
        """See `Driver.stop`."""
        await super().stop(guest)
        await self._removed()

    async def _removed(self) -> None:
        """Wait for the removal of containers that are not needed any more."""
        if self._removing:
            await asyncio.wait(self._removing)

    async def _write(self, spec: GuestSpec, container: str, image: Path) -> SaveReport:
        begin_s = time.monotonic()
        with frozen.scratch(image) as folder:
            files = await self._engine.checkpoint(container, folder)
            if self._own is None:
                self._own = await asyncio.to_thread(likeness_of, files)
            async with written_back(image):
                await asyncio.to_thread(frozen.pack, files, spec, image)
        return await seal(image, time.monotonic() - begin_s)

    async def finished_save(self, guest: str, at: int | None, image: Path) -> SaveReport | None:
        """See `FindsSaves.finished_save`; the image of a whole container has its name once it is whole and durable."""
        if guest in self._guests or not await asyncio.to_thread(frozen.is_frozen, image):
            return await super().finished_save(guest, at, image)
        return await seal(image, 0.0)

    async def close(self) -> None:
        """See `Driver.close`."""
        await super().close()
        with contextlib.suppress(DriverError):
            await self._engine.sweep()
        await self._removed()
        if isinstance(self._weights, ContainerWeights):
            await self._weights.close()
            self._weights = "the driver is not open"
        self._engine.close()

    def socket_name(self, guest: str) -> str:
        """See `ProcessDriver.socket_name`; a restored program reconnects at the same path on any node."""
        return f"{xxhash.xxh32_hexdigest(guest.encode())}{_ROOM}/{_SOCKET}"

    def _new(
        self, spec: GuestSpec, cap_cores: float, image: Path | None, tell: Callable[[DriverEvent], None],
        enclosure: Enclosure | None = None, kept: Kept | None = None,
    ) -> ProcessGuest:  # fmt: skip
        (self._there().state_dir / self.socket_name(spec.guest)).parent.mkdir(exist_ok=True, mode=0o700)
        return super()._new(spec, cap_cores, image, tell, enclosure, kept)

    @property
    def enclosure(self) -> Enclosure:
        """The function that starts guests in containers."""
        return self._enter

    async def _enter(
        self, kept: Kept, spec: GuestSpec, image: Path | None, argv: list[str], env: dict[str, str], folder: Path,
        on_output: Callable[[bytes], None],
    ) -> ContainerChild:  # fmt: skip
        if self._container_caps is None:
            raise DriverError("the driver is not open")
        written = image is not None and await asyncio.to_thread(frozen.is_frozen, image)
        if written and self.why_not_whole:
            raise DriverError(f"image {image} is of a container as a whole, which this node cannot restore: "
                              f"{self.why_not_whole}")  # fmt: skip
        lay = None
        kept.on_drop = partial(self._remove, kept.key)
        if written or (image is None and spec.program.ranks == 1 and not self.why_not_whole):
            env = {**env, "DFRS_CONTROL": f"{WHOLE_FOLDER}/{_SOCKET}"}
            own = self._there().state_dir / self.socket_name(spec.guest)
            await self._engine.make_whole(kept.key, spec, argv, env, own.parent)
            self._wholes.add(spec.guest)
            if image is not None:
                if self._own is None:
                    raise DriverError(f"image {image}: this agent has not saved a container of its own yet")
                lay = partial(frozen.unpack, image, spec, self._own)
        else:
            await self._engine.make(kept.key, spec, image, argv, env, folder)
            self._wholes.discard(spec.guest)
        self._container_caps.enclose(spec.guest, kept.key)
        return self._child(kept, await self._engine.start(kept.key, lay), on_output)

    def _child(
        self, kept: Kept, pid: int, on_output: Callable[[bytes], None], program: int | None = None
    ) -> ContainerChild:
        kept.on_drop = partial(self._remove, kept.key)
        return ContainerChild(self._engine, kept, pid, on_output, program)

    def _remove(self, container: str) -> None:
        """Begin to remove a container whose exit code is not needed any more."""

        async def remove() -> None:
            with contextlib.suppress(DriverError):  # `close` and the next agent try again
                await self._engine.remove(container)

        task = asyncio.get_running_loop().create_task(remove(), name="remove a container")
        self._removing.add(task)
        task.add_done_callback(self._removing.discard)
