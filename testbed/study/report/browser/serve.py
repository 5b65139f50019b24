"""The server of the dashboard, which runs until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from testbed.errors import UserError
from testbed.study.report.browser.app import make_app
from testbed.study.report.browser.follow import Follower
from testbed.study.report.browser.guard import Guard


def address(host: str, port: int) -> str:
    """Return the address of the page for a browser on this machine."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # read here, bound nowhere
    return f"http://{f'[{name}]' if ':' in name else name}:{port}/"


async def serve(
    choose: Callable[[], Path | None], host: str, port: int, token: str | None, tell: Callable[[str], None]
) -> None:
    """Serve the page of the run that `choose` returns; `tell` is called with the address once the server listens.

    Return after Ctrl-C or SIGTERM, once the streams are closed. Raises `UserError` if the server cannot listen.
    """
    follower = Follower(choose)
    await follower.look()
    runner = web.AppRunner(make_app(follower, Guard(host, token)), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            site = web.TCPSite(runner, host, port)
            await site.start()
        except OSError as error:
            hint = "; --port 0 picks a free one" if port else ""
            raise UserError(f"{host}:{port}: cannot listen there: {error.strerror or error}{hint}") from error
        found_port = runner.addresses[0][1]
        tell(address(host, found_port) + (f"?token={token}" if token is not None else ""))
        await _until_told(follower)
    finally:
        await runner.cleanup()


async def _until_told(follower: Follower) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    following = asyncio.create_task(follower.run(), name="follow the run")
    stopping = asyncio.create_task(stop.wait(), name="wait for a signal")
    try:
        await asyncio.wait([following, stopping], return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            following.result()  # this task ends only with an error, which this line raises
    finally:
        for task in (following, stopping):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
