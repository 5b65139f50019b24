"""The main loop of a guest's program: iterations, hold at a given one, checkpoint, restore, end."""

from __future__ import annotations

import math
import os
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from node_agent.programs.ballast import Ballast, ballast_mib, resident_mib
from node_agent.programs.catalogue import find_program
from node_agent.programs.control import Control, SaveOrder
from node_agent.programs.cpu_time import CpuTimeFiller
from node_agent.programs.image import ImageError, ImageReader, write_image
from node_agent.programs.pace import Pace
from node_agent.programs.segments import segments_of
from node_agent.programs.task import LATER, Task, TaskError
from node_agent.programs.waits import Waits
from node_agent.programs.words import seed_of

if TYPE_CHECKING:  # MPI starts on import: only for the programs that use it
    from node_agent.programs.exchange import Exchange
    from node_agent.programs.fabric import Fabric

PROGRESS_EVERY_NS = 500_000_000
_STANDING_S = 0.005  # interval of polls of MPI while held


class Life:
    """One life of one task, from its start or its image to its end or its next image.

    Members of a job must stop at one common iteration, although each may be an iteration ahead of its neighbour. A
    member that waits for messages answers `hold` with the iteration that it is in, for which it has computed and sent
    everything. The controller then lets all members run on to the highest of these iterations, for which no member
    needs a later message.
    """

    def __init__(self, control: Control, task: Task, image: Path | None) -> None:
        self._control = control
        self._task = task
        program = find_program(task.name)
        self._fabric: Fabric | None = None
        self._exchange: Exchange | None = None
        if task.ranks > 1:
            from node_agent.programs.exchange import Exchange  # noqa: PLC0415  # starts MPI
            from node_agent.programs.fabric import Fabric  # noqa: PLC0415  # starts MPI

            control.say("joined", segments=sorted(map(str, segments_of(os.getpid()))))
            self._fabric = Fabric(task)
            self._exchange = Exchange(task, self._fabric, self)
        self._work = program.work(task)
        self._filler = CpuTimeFiller(program.work(task), task.cpu_ns_per_unit) if task.cpu_ns_per_unit else None
        self._iteration = 0
        self._pace = Pace()
        self._waits = Waits()
        self._told_ns = 0  # time of the last report of progress; 0: none in this life
        self._next_ns = 0  # earliest time at which the next iteration begins
        begin_s = time.monotonic()
        if image is None:
            self._ballast = Ballast(ballast_mib(task, resident_mib()), task.touched_frac)
            self._ballast.fill(task)
        else:
            self._ballast = self._restore(image)
        control.at = self._iteration
        control.ready(ballast_mib=self._ballast.mib, touch_s=time.monotonic() - begin_s)

    def run(self) -> None:
        """Work until the task is done or saved; returns when the process should end."""
        control, total = self._control, self._task.iterations
        ended = False
        while not ended:
            control.poll()
            if control.held and (control.save is None or control.save.at <= self._iteration):
                ended = self._stand()
                if control.anew:
                    control.anew, self._told_ns, self._next_ns = False, 0, 0
            elif self._iteration < total:
                if (rest_s := self._rest_s()) > 0.0:
                    control.wait(rest_s)
                else:
                    self._iterate()
            elif self._all_ended():
                self._tell_done()
                ended = True
            else:
                control.wait(1e-3)
        self._ballast.free()
        if self._fabric is not None:
            self._fabric.finalize()

    def _rest_s(self) -> float:
        """Return the seconds until the next iteration of a task with a pace of its own may begin."""
        rest_ns = self._next_ns - time.monotonic_ns()
        return rest_ns / 1e9 if rest_ns <= self._task.pace_ns else 0.0

    def _iterate(self) -> None:
        begin_ns = time.monotonic_ns()
        # a delay of less than one iteration is caught up; a longer one, such as a hold, is not
        self._next_ns = max(self._next_ns + self._task.pace_ns, begin_ns)
        self._compute()
        computed_ns = time.monotonic_ns()
        self._control.at = self._iteration + 1  # from here on the iteration needs only messages of other ranks
        if self._exchange is not None:
            self._exchange.run(self._iteration)
        self._iteration += 1
        now_ns = time.monotonic_ns() if self._exchange is not None else computed_ns
        self._pace.step(begin_ns, computed_ns, now_ns)
        if now_ns - self._told_ns >= PROGRESS_EVERY_NS or not self._told_ns:
            self._told_ns = now_ns
            units = self._task.units_after(self._iteration)
            self._control.say(
                "progress", units=units, mono_ns=now_ns, **self._pace.tell(self._iteration), **self._waits.tell()
            )

    def _compute(self) -> None:
        task, iteration = self._task, self._iteration
        if self._filler is None:
            self._work.run(task.share(iteration))
        else:
            self._filler.run(task.share(iteration), partial(self._work.run, task.counted(iteration)))

    def longest_s(self) -> float:
        """Obey orders while messages are awaited; return how long the next sleep may be, in seconds."""
        control = self._control
        control.poll()
        stands = control.held and control.save is None
        self._pace.stand(stands)  # before the answer: the time after it does not count for an iteration
        control.answer_hold()
        return _STANDING_S if stands else math.inf

    def sleep(self, length_s: float) -> None:
        """Wait for an order, at most so long."""
        self._control.wait(length_s)

    def _all_ended(self) -> bool:
        return self._fabric is None or self._fabric.all_ended()

    def _stand(self) -> bool:
        """Stay at this iteration until released or ordered to run on; return whether the task was saved and ends."""
        control = self._control
        while control.held:
            control.answer_hold()
            order = control.save
            if order is None:
                control.wait(None if self._fabric is None else _STANDING_S)
                if self._fabric is not None:
                    self._fabric.progress()  # what was sent may still be on its way to a neighbour
            elif order.at > self._iteration and order.at <= self._task.iterations:
                return False
            elif self._write(order):
                while control.save is order:
                    if self._all_ended():
                        return True
                    control.wait(1e-3)
            else:
                control.save = None
        return False

    def _write(self, order: SaveOrder) -> bool:
        run_on_s = time.monotonic() - order.since_s
        header: dict[str, object] = {
            "task": asdict(self._task),
            "iteration": self._iteration,
            "ballast_mib": self._ballast.mib,
            **self._pace.keep(),
            "messages": self._exchange.messages if self._exchange else 0,
            "digest": self._exchange.digest if self._exchange else 0,
        }
        try:
            if order.at != self._iteration:
                raise ImageError(
                    f"cannot be written at iteration {order.at}: it is at {self._iteration} of {self._task.iterations}"
                )
            parts = [*(array.data for array in self._work.arrays), self._ballast.bytes]
            written = write_image(Path(order.path), header, parts)
        except ImageError as error:
            self._control.say("save_failed", error=str(error))
            return False
        self._control.say(
            "saved", bytes=written.bytes, digest=written.digest, run_on_s=run_on_s, write_s=written.write_s,
            sync_s=written.sync_s,
        )  # fmt: skip
        return True

    def _restore(self, image: Path) -> Ballast:
        """Restore the state from an image, verified; return the ballast. Raises `ImageError` or `TaskError`."""
        reader = ImageReader(image)
        header = reader.header
        written = {"touched_frac": 1.0, **LATER, **header["task"]}  # earlier versions do not write these
        for name, value in asdict(self._task).items():
            if written.get(name) != value:
                raise TaskError(f"image {image}: {name} = {written.get(name)!r}: expected {value!r}")
        ballast = Ballast(header.get("ballast_mib", header["parts"][-1] >> 20), self._task.touched_frac)
        reader.load([*(array.data for array in self._work.arrays), ballast.bytes])
        self._iteration, self._pace = header["iteration"], Pace.of(header)
        if self._exchange is not None:
            self._exchange.messages, self._exchange.digest = header["messages"], header["digest"]
        return ballast

    def _tell_done(self) -> None:
        exchange = self._exchange
        checksum = seed_of(self._work.checksum(), exchange.digest if exchange else 0)
        self._control.say(
            "done", units=self._task.work_units, checksum=f"{checksum:016x}",
            messages=exchange.messages if exchange else 0, **self._pace.tell(self._iteration),
        )  # fmt: skip
