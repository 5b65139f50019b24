"""Context managers that cancel a block of code when an error occurs in a concurrent task."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

_AGAIN_S = 0.05


@contextlib.asynccontextmanager
async def ended_by() -> AsyncIterator[Callable[[BaseException], None]]:
    """Yield a function that cancels the block; the error of its first call is raised in place of the cancellation.

    The function has no effect once the block has ended. While the task is being cancelled for another reason, such as a
    timeout within the block, the error waits: a second cancellation would interrupt the block's own cleaning up.
    """
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    if task is None:
        raise RuntimeError("ended_by: expected to be in a task")
    inside = True
    reason: BaseException | None = None

    def end(error: BaseException) -> None:
        nonlocal reason
        if not inside or reason is not None:
            return
        if task.cancelling():
            loop.call_later(_AGAIN_S, end, error)
            return
        reason = error
        task.cancel()

    try:
        yield end
    except BaseException:
        if reason is None or task.uncancel():
            raise
    else:
        if reason is not None:
            task.uncancel()
    finally:
        inside = False
    if reason is not None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)  # the block may have ended before its cancellation was delivered
        raise reason


@contextlib.asynccontextmanager
async def ended_by_error_of(beside: asyncio.Future[None]) -> AsyncIterator[None]:
    """Cancel the block as soon as a concurrent task or future fails, and raise its error."""
    async with ended_by() as end:

        def over(ended: asyncio.Future[None]) -> None:
            error = None if ended.cancelled() else ended.exception()
            if error is not None:
                end(error)

        beside.add_done_callback(over)
        yield
