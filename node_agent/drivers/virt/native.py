"""The guest image's own binaries, run on the node itself, each with the agent's end of a guest's channel.

A rank has a folder of its own with its task. It connects to the socket there, sends `ready`, receives `go`, and writes
its progress to the file `progress`. It runs without ballast. The process manager of a job's ranks is the agent, as in
guests. MPI chooses the transport between the processes of the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import shutil
import signal
import socket
import struct
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

from node_agent.drivers.caps.duty import process_clock
from node_agent.drivers.caps.probe import open_caps
from node_agent.drivers.caps.protocol import Caps
from node_agent.drivers.native import NativeBarriers, RankProgress, measure, rank_spec
from node_agent.drivers.pmi.link import PmiLink
from node_agent.drivers.pmi.server import PmiServer
from node_agent.drivers.procs.child import Child, ending
from node_agent.drivers.procs.environment import tethered
from node_agent.drivers.procs.link import LONGEST_PATH
from node_agent.drivers.procs.log import Log
from node_agent.drivers.procs.records import ProcessRecords
from node_agent.drivers.protocol import DriverError, NativeReport, NodeBudget
from node_agent.guests.task_fields import task_fields
from node_agent.guests.unpack import unpacked
from node_agent.guests.wire import MAX_FRAME_BYTES
from node_agent.programs.segments import abandoned_segments, remove_segments, segments_of
from testbed.bus.caps import same_cap
from testbed.bus.messages import GuestSpec, ProgramSpec, RankKeys
from testbed.errors import TestbedError
from testbed.host.guest_image import GuestImage

_READY_WITHIN_S = 30.0
_GONE_WITHIN_S = 2.0
_PEER = struct.Struct("3i")  # process, user, group
_UNITS = struct.Struct("<Q")  # the first word of `struct pace` in pace.h


def left_programs(state_dir: Path) -> ProcessRecords:
    """Return the record of programs that agents with this folder ran outside guests."""
    return ProcessRecords(state_dir / "native.json")


_log = logging.getLogger(__name__)


class NativePrograms:
    """Runs programs of an unpacked guest image; programs left by an earlier agent are ended first."""

    def __init__(self, root: Path, state_dir: Path, cap_group: str) -> None:
        """`cap_group` names the control group of its caps; it is only made when there is a cap to set."""
        (self._loader,) = (root / "lib64").glob("ld-linux*")
        self._root = root
        self._state_dir = state_dir
        self._cap_group = cap_group
        self._caps: Caps | None = None
        self._opening = asyncio.Lock()
        self._records = left_programs(state_dir)
        self._ranks: set[_Rank] = set()
        self._records.kill_left()
        for left in state_dir.glob("native-*"):
            shutil.rmtree(left, ignore_errors=True)

    async def run(self, program: ProgramSpec, seconds: float, cap_cores: float) -> NativeReport:
        """See `Natives.native`."""
        ranks: list[_Rank] = []
        try:
            for number in range(program.ranks):
                rank = _Rank(rank_spec(f"native-{number}", program, number, 1), self._state_dir, self._records)
                self._ranks.add(rank)
                ranks.append(rank)
            if len(ranks) == 1:
                ranks[0].spawn(self._argv(f"bin/{program.name}"))
            else:
                await self._launch(ranks, program)
            await asyncio.gather(*(rank.made() for rank in ranks))
            if cap_cores:
                await self._cap(ranks, program, cap_cores)
            for rank in ranks:
                rank.go()
            return await measure([rank.read for rank in ranks], seconds)
        finally:
            await asyncio.shield(self._end(ranks))

    async def close(self) -> None:
        """End all running programs."""
        await self._end(list(self._ranks))
        if self._caps is not None:
            await self._caps.close()
            self._caps = None
        self._records.remove()

    def _argv(self, program: str, *arguments: str) -> list[str]:
        """Return the command line of a program with the image's own loader and libraries, not this machine's."""
        path = str(self._root / program)
        if program == "bin/eatcpu":  # linked statically
            return [path, *arguments]
        return [str(self._loader), "--library-path", str(self._root / "usr/lib"), path, *arguments]

    async def _launch(self, ranks: Sequence[_Rank], program: ProgramSpec) -> None:
        barriers = NativeBarriers(len(ranks))
        barriers.passes = [rank.pass_barrier for rank in ranks]
        for rank in ranks:
            await rank.spawn_rank(self._argv(f"bin/{program.name}"), barriers)

    async def _cap(self, ranks: Sequence[_Rank], program: ProgramSpec, cap_cores: float) -> None:
        async with self._opening:
            if self._caps is None:
                self._caps = await open_caps(self._cap_group, None)
        for rank in ranks:
            await self._caps.add(rank.key, rank.pid, program.workers)
            rank.capped = True
            found = await self._caps.set(rank.key, cap_cores)
            if found is None or not same_cap(found, cap_cores, program.workers):
                raise DriverError(f"native: {rank.name}: cap {cap_cores} cores was read back as {found}")

    async def _end(self, ranks: Sequence[_Rank]) -> None:
        for rank in ranks:
            rank.kill()
        for rank in ranks:
            await rank.gone()
            if rank.capped and self._caps is not None:
                await self._caps.remove(rank.key)
            self._ranks.discard(rank)


class _Rank:
    """One rank, with the agent's end of its channel."""

    def __init__(self, spec: GuestSpec, state_dir: Path, records: ProcessRecords) -> None:
        self.name = spec.guest
        self.pid = 0
        self.capped = False
        self._spec = spec
        self._records = records
        self._folder = Path(tempfile.mkdtemp(prefix=f"{spec.guest}-", dir=state_dir))
        self.key = self._folder.name  # unique across runs, unlike the name
        self.log = Log(self._folder / "log")
        self._children: list[Child] = []
        self._pidfd = -1
        self._trouble = ""
        self._pmi: PmiLink | None = None
        self._hearing: asyncio.Task[None] | None = None
        self._connection: socket.socket | None = None
        self._segments: set[Path] = set()
        self._made_unix_s = time.time()
        path = self._folder / "agent.sock"
        if len(os.fsencode(path)) > LONGEST_PATH:
            self._folder.rmdir()
            raise DriverError(f"control socket {path}: expected a path of at most {LONGEST_PATH} bytes")
        fields = "".join(f"{name}={value}\n" for name, value in task_fields(spec))
        (self._folder / "task").write_text(fields, encoding="utf-8")
        (self._folder / "meminfo").write_text("MemAvailable: 0 kB\n", encoding="ascii")  # so there is no ballast
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._listener.bind(str(path))
        self._listener.listen()

    async def spawn_rank(self, argv: list[str], barriers: NativeBarriers) -> None:
        """Start its process as a rank, whose process manager is this one."""
        place = self._spec.program
        self._pmi = PmiLink(
            PmiServer(place.rank, place.ranks, barriers.session),
            lambda barrier: barriers.enter(place.rank, barrier.detail()), self._spoke_nonsense,
        )  # fmt: skip
        ours, theirs = socket.socketpair()
        with theirs:
            await self._pmi.take(ours)
            fd = theirs.fileno()
            told = {"PMI_FD": str(fd), "PMI_RANK": str(place.rank), "PMI_SIZE": str(place.ranks)}
            self.spawn(argv, told, inherits=(fd,))

    def pass_barrier(self, session: str, number: int, keys: Sequence[RankKeys], *, last: bool) -> None:
        """See `PmiServer.pass_barrier`."""
        if self._pmi is not None:
            self._pmi.pass_barrier(session, number, keys, last=last)

    def _spoke_nonsense(self, why: str) -> None:
        self._trouble = self._trouble or why
        self.kill()

    def spawn(
        self, argv: list[str], more: Mapping[str, str] = MappingProxyType({}), inherits: Sequence[int] = ()
    ) -> None:
        """Start its process, which ends with this one; `more` adds to its environment, `inherits` are descriptors."""
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C", "DFRS_RUN": str(self._folder),
            "DFRS_MEMINFO": str(self._folder / "meminfo"),
            **more,
        }  # fmt: skip
        child = Child(tethered(argv), environment, self._folder, self.log.write, inherits)
        self._children.append(child)
        self._records.add(child.pid)

    async def made(self) -> None:
        """Wait until the program has sent `ready`."""
        loop = asyncio.get_running_loop()
        accepting = loop.create_task(self._accept(), name=f"{self.name} connects")
        ends: list[asyncio.Future[Any]] = [accepting, *(child.exited for child in self._children)]
        try:
            await asyncio.wait(ends, timeout=_READY_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
            if not accepting.done():
                raise DriverError(f"native: {self.name} did not get ready{self._words()}")
            self._connection = await accepting
        finally:
            accepting.cancel()
        self._hearing = loop.create_task(self._hear(self._connection), name=f"{self.name} speaks")

    async def _accept(self) -> socket.socket:
        """Return the program's connection after its first message, which must be `ready`."""
        loop = asyncio.get_running_loop()
        connection, _ = await loop.sock_accept(self._listener)
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        self.pid = int(_PEER.unpack(peer)[0])
        with contextlib.suppress(ProcessLookupError):  # it may have ended: its last messages are still to be read
            self._pidfd = os.pidfd_open(self.pid)
        self._records.add(self.pid)
        said = (await loop.sock_recv(connection, MAX_FRAME_BYTES)).decode(errors="replace")
        if said.partition(" ")[0] != "ready":
            connection.close()
            raise DriverError(f"native: {self.name}: {unquote(said) or self._trouble or 'it hung up'}{self._words()}")
        if self._spec.program.ranks > 1:
            self._segments = segments_of(self.pid)  # read now: it may end early together with another rank
            self._records.share(self._segments)
        return connection

    async def _hear(self, connection: socket.socket) -> None:
        said = (await asyncio.get_running_loop().sock_recv(connection, MAX_FRAME_BYTES)).decode(errors="replace")
        kind = said.partition(" ")[0]
        done = f"its {self._spec.program.work_units} work units were done too early"
        heard = done if kind == "done" else unquote(said) or f"it hung up{self._words()}"
        self._trouble = self._trouble or heard

    def go(self) -> None:
        """Send `go`: the program may work."""
        if self._connection is not None:
            with contextlib.suppress(OSError):  # it has ended: `read` will raise
                self._connection.send(b"go")

    def read(self) -> RankProgress:
        """Return its progress."""
        if self._trouble:
            raise DriverError(f"native: {self.name}: {self._trouble}")
        try:
            (units,) = _UNITS.unpack((self._folder / "progress").read_bytes()[: _UNITS.size])
            return RankProgress(units, time.monotonic_ns(), time.clock_gettime(process_clock(self.pid)))
        except (OSError, struct.error) as error:
            raise DriverError(f"native: {self.name}: it has ended: {error}{self._words()}") from error

    def kill(self) -> None:
        """Kill all of its processes."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        for child in self._children:
            child.kill()

    async def gone(self) -> None:
        """Wait until they have ended, and remove their files."""
        if self._hearing is not None:
            self._hearing.cancel()
            await asyncio.gather(self._hearing, return_exceptions=True)
        await asyncio.gather(*(asyncio.shield(child.exited) for child in self._children))
        if self._pidfd >= 0:
            pidfd, self._pidfd = self._pidfd, -1
            await asyncio.to_thread(select.select, [pidfd], [], [], _GONE_WITHIN_S)
            os.close(pidfd)
        if self._connection is not None:
            self._connection.close()
        self._listener.close()
        if self._pmi is not None:
            self._pmi.close()
        if self._spec.program.ranks > 1:  # it may have ended while MPI started
            self._segments |= await asyncio.to_thread(abandoned_segments, self._made_unix_s)
        remove_segments(self._segments)
        self._records.unshare(self._segments)
        self._records.discard(self.pid, *(child.pid for child in self._children))
        shutil.rmtree(self._folder, ignore_errors=True)

    def _words(self) -> str:
        ended = [ending(child.exited.result()) for child in self._children if child.exited.done()]
        said = self.log.tail()
        return "".join(f"; {words}" for words in (", ".join(ended), said and f"it printed: {said}") if words)


def native_programs(image: GuestImage, budget: NodeBudget) -> NativePrograms | None:
    """Return the programs of a guest image outside guests, None where they cannot be unpacked."""
    group = f"{budget.prefix}{budget.node}-native-{os.getpid()}"
    try:
        return NativePrograms(unpacked(image), budget.state_dir, group)
    except (OSError, TestbedError) as error:
        _log.warning("no programs outside guests: %s", error)
        return None
