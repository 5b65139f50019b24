"""Executes units of work on this machine: sequentially in this process, or in worker processes.

Both functions are generators: they take a unit when a worker is idle, call `begin` for the unit, and yield results in
the order of completion. Closing a generator ends its workers.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from testbed.scheduling.campaign.plan import Unit
from testbed.scheduling.campaign.work import UnitResult, do_unit, failed

Begin = Callable[[Unit], None]
MOST_DEATHS = 3  # dead workers per unit before the unit counts as failed
_GRACE_S = 10.0


def work_here(units: Iterable[Unit], code: str, begin: Begin) -> Generator[UnitResult, None, None]:
    """Execute units one after the other in this process."""
    for unit in units:
        begin(unit)
        yield do_unit(unit, code)


@dataclass(slots=True, eq=False)
class _Worker:
    process: SpawnProcess
    pipe: Connection
    unit: Unit | None = None

    def give(self, unit: Unit, code: str) -> None:
        self.unit = unit
        with suppress(BrokenPipeError, ConnectionResetError):  # its sentinel reports its death
            self.pipe.send((unit, code))


def work_in_processes(units: Iterable[Unit], code: str, begin: Begin, count: int) -> Generator[UnitResult, None, None]:
    """Execute units in `count` processes; a unit fails when `MOST_DEATHS` processes have died at it."""
    source = iter(units)
    again: list[Unit] = []
    deaths: dict[str, int] = {}
    workers: list[_Worker] = []

    def feed(worker: _Worker) -> bool:
        unit = again.pop() if again else next(source, None)
        if unit is None:
            return False
        begin(unit)
        worker.give(unit, code)
        return True

    try:
        while len(workers) < count:
            workers.append(_start())
            if not feed(workers[-1]):
                break
        while busy := [worker for worker in workers if worker.unit is not None]:
            ready = wait([source for worker in busy for source in (worker.pipe, worker.process.sentinel)])
            for worker in busy:
                unit = worker.unit
                if unit is None or not {worker.pipe, worker.process.sentinel} & set(ready):
                    continue
                result = _receive(worker)
                if result is None:
                    workers.remove(worker)
                    worker.process.join(_GRACE_S)
                    deaths[unit.name] = deaths.get(unit.name, 0) + 1
                    if deaths[unit.name] < MOST_DEATHS:
                        again.append(unit)
                    else:
                        yield failed(unit, code, f"its process ended with exit code {worker.process.exitcode}, thrice")
                    workers.append(worker := _start())
                else:
                    yield result
                worker.unit = None
                feed(worker)
    finally:
        _end(workers)


def _receive(worker: _Worker) -> UnitResult | None:
    """Return the result of a ready worker, None if the worker died before it sent all; raise the worker's exception."""
    try:
        if not worker.pipe.poll():
            return None
        answer: UnitResult | BaseException = worker.pipe.recv()
    except (EOFError, OSError):
        return None
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _start() -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    resource_tracker.ensure_running()  # else the first start does this, and then unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()  # workers inherit the mask: Ctrl-C reaches the whole group, but the campaign ends its workers
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return _Worker(process, ours)


def _end(workers: list[_Worker]) -> None:
    for worker in workers:
        if worker.unit is not None:
            worker.process.terminate()
        worker.pipe.close()
    for worker in workers:
        worker.process.join(_GRACE_S)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.process.close()


def _serve(pipe: Connection) -> None:
    """Main loop of a worker: receive units and send results until the other end closes."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, OSError):
        while True:
            unit, code = pipe.recv()
            try:
                answer: UnitResult | Exception = do_unit(unit, code)
            except Exception as error:  # noqa: BLE001  # re-raised in the campaign's process
                answer = error
            pipe.send(answer)


def _end_with_parent() -> None:
    """End this process at once when the campaign was killed, whose units will be executed again."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
