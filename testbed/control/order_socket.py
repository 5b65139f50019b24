"""The Unix socket in a run directory on which the controller takes orders, and the client's end of it.

Only root and the user of the controller's process may give orders. Orders do not use the bus, to which nodes have
access.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec

from testbed.control.line_socket import Counter, NoControllerError, Peer, answering, ask, connect
from testbed.control.order_messages import Answer, Request
from testbed.control.orders import Orders
from testbed.errors import TestbedError

SOCKET: Final = "control.sock"
_log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def taking_orders(orders: Orders, run: Path, *, dry: bool = False) -> AsyncIterator[None]:
    """Take orders in the run directory `run`; if the socket cannot be created, the run continues without orders.

    A dry run takes no orders, because its time is virtual.
    """
    if dry:
        yield
        return

    async def answer(line: bytes, peer: Peer) -> bytes:
        try:
            request = msgspec.json.decode(line, type=Request)
        except (ValueError, msgspec.DecodeError) as error:
            return _refusal(f"not a request: {error or 'nothing came'}")
        try:
            done = await orders.carry_out(request, f"user {peer.uid}, process {peer.pid}")
        except TestbedError as error:
            return _refusal(str(error))
        return msgspec.json.encode(done)

    async with contextlib.AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(
                answering(Counter(answer, _refusal, _may, "order of the operator"), run / SOCKET, 0o600)
            )
        except OSError as error:
            _log.warning("%s: cannot be created: %s; the run takes no orders", run / SOCKET, error.strerror)
        yield


def send(run: Path, request: Request) -> Answer:
    """Send an order to the controller of a run; return its answer once the effect is in place or after the timeout.

    Raises `NoControllerError` if no controller takes orders there, or the controller ends before it answers.
    """
    line = ask(run / SOCKET, msgspec.json.encode(request), request.wait_s)
    try:
        return msgspec.json.decode(line, type=Answer)
    except (ValueError, msgspec.DecodeError) as error:
        raise NoControllerError(f"{run}: its controller ended before it answered") from error


def takes_orders(run: Path) -> bool:
    """Whether a controller listens in a run directory."""
    try:
        with connect(run / SOCKET):
            return True
    except NoControllerError:
        return False


def _may(peer: Peer) -> str:
    if peer.uid in (0, os.geteuid()):
        return ""
    return f"user {peer.uid} may not give orders to a run of user {os.geteuid()}"


def _refusal(text: str) -> bytes:
    return msgspec.json.encode(Answer(done=False, text=text, state=""))
