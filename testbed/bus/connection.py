"""One MQTT connection: made within a deadline, refused with one clear line, never left half open.

aiomqtt makes the TCP connection in a thread, which nothing can stop, and leaves the socket and its reader
behind if the broker does not greet. So the loop tries the address first (then the thread has next to nothing
to do), and whatever failed later is taken apart here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import aiomqtt
from aiomqtt.exceptions import MqttConnectError  # not exported by the package itself

from testbed.bus.address import BrokerAddress
from testbed.bus.protocol import NoBrokerError, Presence
from testbed.bus.tls import client_context
from testbed.bus.topics import CLIENT_PREFIX

# Small packets go out at once: Nagle's algorithm and delayed acknowledgements would add 40 ms each way.
_NO_DELAY = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
_GRACE_S = 0.5  # for a thread in the middle of its connect, and for a last packet

_NO_GREETING = "it closed the connection without a greeting"

T = TypeVar("T")

_wire_log = logging.getLogger("testbed.bus.wire")
_wire_log.setLevel(logging.CRITICAL)  # losses are told by the bus, with the broker's address


class Connection(aiomqtt.Client):
    """aiomqtt's client, with what it overlooks at the edges of a connection."""

    def abort(self) -> None:
        """Break the connection without a word, so that the broker publishes the last will."""
        sock = self._client.socket()
        if isinstance(sock, socket.socket):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    async def _wait_for(self, fut: Awaitable[T], timeout: float | None) -> T:  # noqa: ASYNC109  aiomqtt's signature
        task = asyncio.current_task()
        cancels = task.cancelling() if task is not None else 0
        result = await super()._wait_for(fut, timeout)
        if task is not None and task.cancelling() > cancels:
            raise asyncio.CancelledError  # wait_for of Python 3.11 forgets a cancellation that comes with the result
        return result

    def _on_disconnect(self, client: Any, userdata: Any, flags: Any, reason_code: Any, properties: Any = None) -> None:
        if self._connected.done():
            super()._on_disconnect(client, userdata, flags, reason_code, properties)
        else:  # else it would wait for a greeting until its time is over
            self._connected.set_exception(aiomqtt.MqttError(_NO_GREETING))
            self._connected.exception()  # nobody may wait for it any more

    def _on_socket_register_write(self, client: Any, userdata: Any, sock: Any) -> None:
        # Its own version registers the socket's number a turn of the loop later: closed by then, or another's.
        del client, userdata
        self._loop.call_soon_threadsafe(self._watch, sock)

    def _watch(self, sock: socket.socket) -> None:
        if sock.fileno() >= 0:
            self._loop.add_writer(sock.fileno(), self._write)

    def _write(self) -> None:
        try:
            self._client.loop_write()
        except Exception as error:  # noqa: BLE001  whatever it was, the connection is broken
            if not self._disconnected.done():
                self._disconnected.set_exception(error)


def _seen(task: asyncio.Task[object]) -> None:
    """Take note of a task's failure, so that the loop does not complain where nobody waits for it any more."""
    if not task.cancelled():
        task.exception()


async def connect(
    address: BrokerAddress,
    client_id: str,
    presence: Presence | None,
    deliver: Callable[[str, bytes], None],
    *,
    keep_session: bool,
    timeout_s: float,
    keepalive_s: int,
) -> Connection:
    """Return an open connection (MQTT 3.1.1: every broker has it), or raise `NoBrokerError` within `timeout_s`.

    `deliver(topic, payload)` is called for each message that arrives, before it is acknowledged.
    """

    class Straight(asyncio.Queue[aiomqtt.Message]):
        """Hands messages on at once: those that aiomqtt holds when a connection breaks would be lost."""

        def put_nowait(self, item: aiomqtt.Message) -> None:
            deliver(item.topic.value, bytes(item.payload))

    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    tls = await asyncio.to_thread(client_context, address.tls_dir) if address.tls else None
    await _try_address(address, timeout_s, tls)
    client = Connection(
        address.host,
        address.port,
        username=address.username,
        password=address.password,
        identifier=f"{CLIENT_PREFIX}{client_id}",
        clean_session=not keep_session,
        will=aiomqtt.Will(presence.topic, presence.lost, qos=1, retain=presence.retain) if presence else None,
        keepalive=keepalive_s,
        timeout=max(deadline_s - loop.time(), 0.1),
        tls_context=tls,
        socket_options=[_NO_DELAY],
        queue_type=Straight,
        logger=_wire_log,
    )
    entering = asyncio.create_task(client.__aenter__(), name=f"bus {client_id}: connect")
    entering.add_done_callback(_seen)
    try:
        await asyncio.wait([entering])
    except asyncio.CancelledError:
        await asyncio.wait([entering], timeout=_GRACE_S)
        await disconnect(client)
        entering.cancel()  # only now: cancelled while its socket is open, it would leave that open
        await asyncio.wait([entering])
        raise
    # A loss in the middle of the greeting may also cancel a future of aiomqtt's own, and so the task itself.
    error = aiomqtt.MqttError(_NO_GREETING) if entering.cancelled() else entering.exception()
    if error is None:
        return client
    if isinstance(error, MqttConnectError):
        raise NoBrokerError(f"broker {address} refuses {client_id}: {_reason(error)}")
    await disconnect(client)
    hint = f"no MQTT greeting within {timeout_s:g} s; is it a broker?" if "timed out" in str(error) else str(error)
    if address.tls and _NO_GREETING in hint:
        hint += f"; does it trust {_own(address)}, on this port? Agents and controllers have different ones"
    raise NoBrokerError(f"broker {address}: {hint or type(error).__name__}")


async def lost(client: aiomqtt.Client) -> None:
    """Wait until the connection is lost, and raise `aiomqtt.MqttError` then."""
    async for _ in client.messages:
        raise AssertionError("messages are delivered straight")  # its queue stays empty


async def disconnect(client: Connection, *, in_peace: bool = True) -> None:
    """Close a connection in whatever state it is; if not `in_peace`, the broker publishes the last will.

    Raises nothing: aiomqtt passes on every error of reading or writing the socket, and the bus, which connects again
    after this, would end with it.
    """
    if not in_peace:
        client.abort()
    leaving = asyncio.create_task(client.__aexit__(None, None, None))
    leaving.add_done_callback(_seen)
    try:
        await asyncio.wait([leaving], timeout=_GRACE_S)
    finally:
        leaving.cancel()


async def _try_address(address: BrokerAddress, timeout_s: float, tls: ssl.SSLContext | None) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(address.host, address.port, ssl=tls)
    except TimeoutError:
        raise NoBrokerError(f"broker {address}: no answer within {timeout_s:g} s") from None
    except OSError as error:
        raise NoBrokerError(f"broker {address}: {_os_reason(error)}") from None
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _own(address: BrokerAddress) -> str:
    return f"the certificate in {address.tls_dir}" if address.tls_dir else "us without a certificate"


def _os_reason(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused; does a broker run there?"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not to be trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS 1.3 with it: {error.reason or error}"
    if isinstance(error, socket.gaierror):
        return "there is no host of this name"
    return error.strerror or str(error)


def _reason(error: MqttConnectError) -> str:
    text = str(error.rc).lower()
    return f"{text}; check user and password" if "author" in text or "password" in text else text
