"""An event loop in a thread of its own, for blocking code such as checks."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager
from typing import Any, Self, TypeVar

T = TypeVar("T")


class Portal:
    """Owns the loop and its thread inside `with`; other threads run coroutines there by `call` and `within`."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loop of the lab", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._runner.close()

    def begin(self, work: Coroutine[Any, Any, T]) -> tuple[asyncio.Task[T], Future[T]]:
        """Start a coroutine as a task of the loop; return the task, and a future that gets its result."""
        future: Future[T] = Future()

        def hand_over(task: asyncio.Task[T]) -> None:
            if task.cancelled():
                future.set_exception(asyncio.CancelledError())
            elif (error := task.exception()) is not None:
                future.set_exception(error)
            else:
                future.set_result(task.result())

        started: Future[asyncio.Task[T]] = Future()

        def start() -> None:
            task = self._loop.create_task(work)
            task.add_done_callback(hand_over)
            started.set_result(task)

        self._loop.call_soon_threadsafe(start)
        return started.result(), future

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and return its result.

        An interrupt (Ctrl-C) cancels the coroutine and waits until it has cleaned up; a second interrupt ends the wait.
        """
        task, future = self.begin(work)
        try:
            return future.result()
        except BaseException:
            if not future.done():
                self._loop.call_soon_threadsafe(task.cancel)
                wait((future,))
            raise

    @contextlib.contextmanager
    def within(self, context: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """Hold an asynchronous context open for the block; one task enters and leaves it, as many contexts require."""
        entered: Future[T] = Future()
        leave = asyncio.Event()

        async def hold() -> None:
            async with context as value:
                entered.set_result(value)
                await leave.wait()

        task, future = self.begin(hold())
        try:
            future.add_done_callback(lambda ended: _pass_on(ended, entered))
            yield entered.result()
        finally:
            self._loop.call_soon_threadsafe(leave.set if entered.done() else task.cancel)
            wait((future,))
        future.result()


def _pass_on(ended: Future[None], entered: Future[Any]) -> None:
    if entered.done():
        return
    entered.set_exception(ended.exception() or RuntimeError("the context was left before it was entered"))
