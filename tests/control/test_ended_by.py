"""A block that another task ends, with the reason."""

from __future__ import annotations

import asyncio

import pytest

from testbed.errors import RunError
from testbed.lab.ended_by import ended_by
from testbed.lab.virtual_time import run_in_virtual_time


def test_the_reason_takes_the_place_of_the_cancellation() -> None:
    async def main() -> None:
        async with ended_by() as end:
            asyncio.get_running_loop().call_soon(end, RunError("first"))
            asyncio.get_running_loop().call_soon(end, RunError("second"))
            await asyncio.Event().wait()

    with pytest.raises(RunError, match="first"):
        asyncio.run(main())


def test_a_block_that_ended_by_itself_at_the_same_time_is_ended_all_the_same() -> None:
    async def main() -> int:
        with pytest.raises(RunError, match="late"):
            async with ended_by() as end:
                end(RunError("late"))
        await asyncio.sleep(0)
        return asyncio.current_task().cancelling()

    assert asyncio.run(main()) == 0


def test_a_reason_that_comes_while_a_timeout_within_the_block_ends_is_not_lost() -> None:
    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        async with ended_by() as end:
            task.cancel()  # as asyncio.timeout does when its time is over
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                end(RunError("meanwhile"))
                task.uncancel()
            await asyncio.Event().wait()

    with pytest.raises(RunError, match="meanwhile"):
        run_in_virtual_time(main())


def test_a_reason_does_not_interrupt_the_cleaning_up_of_a_block_that_is_cancelled() -> None:
    cleaned = []

    async def work() -> None:
        async with ended_by() as end:
            try:
                await asyncio.Event().wait()
            finally:
                end(RunError("a consequence"))
                await asyncio.sleep(10.0)  # of virtual time
                cleaned.append("up")

    async def main() -> None:
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_in_virtual_time(main())
    assert cleaned == ["up"]


def test_a_reason_after_the_block_has_no_effect() -> None:
    async def main() -> str:
        async with ended_by() as end:
            pass
        end(RunError("too late"))
        await asyncio.sleep(0)
        return "went on"

    assert asyncio.run(main()) == "went on"


def test_another_cancellation_stays_one() -> None:
    async def block() -> None:
        async with ended_by() as end:
            try:
                await asyncio.Event().wait()
            finally:
                end(RunError("after it was cancelled"))

    async def main() -> None:
        task = asyncio.create_task(block())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_an_error_of_the_block_is_raised_as_it_is() -> None:
    async def main() -> None:
        async with ended_by():
            raise ValueError("own")

    with pytest.raises(ValueError, match="own"):
        asyncio.run(main())
