"""One MQTT connection: made within a deadline, refused with a one-line reason, never left half open.

aiomqtt makes the TCP connection in a thread that cannot be stopped, and leaks the socket and its reader if the broker
sends no CONNACK. So this module first connects from the event loop, which leaves little work to that thread, and closes
the socket after later failures.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import aiomqtt
from aiomqtt.exceptions import MqttConnectError  # not exported by the package itself
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from testbed.bus.address import BrokerAddress
from testbed.bus.certificate import names_of
from testbed.bus.protocol import NoBrokerError, Presence
from testbed.bus.tls import client_context
from testbed.bus.topics import CLIENT_PREFIX, never_retained
from testbed.errors import printable

# Small packets are sent at once: Nagle's algorithm and delayed acknowledgements would add 40 ms each way.
_NO_DELAY = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
_GRACE_S = 0.5  # for a thread in the middle of its connect, and for a last packet

_NO_GREETING = "it closed the connection without a CONNACK"
_HUNG_UP = "it closed the connection right after its CONNACK"
_REFUSED = 0x80  # reason codes from here on [MQTT5-2.4]
_OLDER_VERSION = 0x84  # the broker does not speak this version of the protocol
_TAKEN_OVER = 0x8E  # another client of the same id has connected

# DECRYPT_ERROR is the alert for a certificate of another authority with the same name.
_UNTRUSTED = ("UNKNOWN_CA", "BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN", "DECRYPT_ERROR")
_DOORS = "agents have port 8883, controllers 8884, unless the broker is configured otherwise"

T = TypeVar("T")

_log = logging.getLogger(__name__)
_wire_log = logging.getLogger("testbed.bus.wire")
_wire_log.setLevel(logging.CRITICAL)  # the bus logs losses itself, with the broker's address


class OlderBrokerError(NoBrokerError):
    """The broker does not speak MQTT 5."""


class Connection(aiomqtt.Client):
    """aiomqtt's client, with fixes for the beginning and the end of a connection."""

    taken_over = False  # whether the broker reported that another client of the same id has connected

    @property
    def open(self) -> bool:
        """Whether the broker has sent its CONNACK, and the connection has not ended since."""
        return self._client.is_connected()

    def watch_end(self) -> None:
        """Retrieve the error that ends the connection, so that asyncio does not log it if no task awaits it."""
        self._disconnected.add_done_callback(_seen)

    def end_session(self) -> None:
        """Let a broker of MQTT 5 discard this client's session when the connection is closed."""
        if self._client.protocol == aiomqtt.ProtocolVersion.V5.value:
            expiry = _expiry(PacketTypes.DISCONNECT, 0.0)
            self._client.disconnect = partial(self._client.disconnect, properties=expiry)  # type: ignore[method-assign]

    def abort(self) -> None:
        """Break the connection without a DISCONNECT, so that the broker publishes the last will."""
        sock = self._client.socket()
        if isinstance(sock, socket.socket):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    async def _wait_for(self, fut: Awaitable[T], timeout: float | None) -> T:  # noqa: ASYNC109  aiomqtt's signature
        task = asyncio.current_task()
        cancels = task.cancelling() if task is not None else 0
        result = await super()._wait_for(fut, timeout)
        if task is not None and task.cancelling() > cancels:
            raise asyncio.CancelledError  # wait_for of Python 3.11 loses a cancellation that comes with the result
        return result

    def _on_disconnect(self, client: Any, userdata: Any, flags: Any, reason_code: Any, properties: Any = None) -> None:
        self.taken_over = getattr(reason_code, "value", 0) == _TAKEN_OVER
        if self._connected.done():
            super()._on_disconnect(client, userdata, flags, reason_code, properties)
        else:  # aiomqtt would wait for the CONNACK until its timeout
            self._connected.set_exception(aiomqtt.MqttError(_NO_GREETING))
            self._connected.exception()  # retrieved, as possibly no task awaits it any more

    def _on_publish(self, client: Any, userdata: Any, mid: int, reason_code: Any, properties: Any) -> None:
        if getattr(reason_code, "value", 0) >= _REFUSED:
            _log.warning("a message was refused by the broker: %s; do its access rules list this client?", reason_code)
        super()._on_publish(client, userdata, mid, reason_code, properties)

    def _on_socket_register_write(self, client: Any, userdata: Any, sock: Any) -> None:
        # aiomqtt registers the file descriptor in a later iteration of the loop, when it may be closed or reused.
        del client, userdata
        self._loop.call_soon_threadsafe(self._watch, sock)

    def _watch(self, sock: socket.socket) -> None:
        if sock.fileno() >= 0:
            self._loop.add_writer(sock.fileno(), self._write)

    def _write(self) -> None:
        try:
            self._client.loop_write()
        except Exception as error:  # noqa: BLE001  after any error the connection is broken
            if not self._disconnected.done():
                self._disconnected.set_exception(error)


def _seen(future: asyncio.Future[Any]) -> None:
    """Retrieve an exception, so that asyncio does not log "never retrieved" if no task awaits the future any more."""
    if not future.cancelled():
        future.exception()


async def connect(
    address: BrokerAddress,
    client_id: str,
    presence: Presence | None,
    deliver: Callable[[str, bytes], None],
    *,
    session_s: float,
    timeout_s: float,
    keepalive_s: int,
    mqtt5: bool = True,
) -> Connection:
    """Return an open connection, or raise `NoBrokerError` within `timeout_s`.

    The broker keeps the session for `session_s` seconds after the connection was lost; 0 is no session. A broker
    without MQTT 5 raises `OlderBrokerError`. With `mqtt5` false the connection has MQTT 3.1.1, which every broker
    supports, and the broker chooses for how long it keeps a session. `deliver(topic, payload)` is called for each
    message that arrives, before the acknowledgement. Retained messages are dropped on topics that must not have any.
    """

    class Straight(asyncio.Queue[aiomqtt.Message]):
        """Delivers messages at once, as messages in aiomqtt's own queue would be lost when the connection breaks."""

        def put_nowait(self, item: aiomqtt.Message) -> None:
            if mqtt5 and item.retain and never_retained(item.topic.value):  # amqtt marks all queued ones as retained
                _log.warning("%s: a retained message is ignored: none is due there", printable(item.topic.value, 200))
            else:
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
        **_session(session_s, mqtt5=mqtt5),
        will=aiomqtt.Will(presence.topic, presence.lost, qos=1, retain=presence.retain) if presence else None,
        keepalive=keepalive_s,
        timeout=max(deadline_s - loop.time(), 0.1),
        tls_context=tls,
        socket_options=[_NO_DELAY],
        queue_type=Straight,
        logger=_wire_log,
    )
    client.watch_end()
    entering = asyncio.create_task(client.__aenter__(), name=f"bus {client_id}: connect")
    entering.add_done_callback(_seen)
    try:
        await asyncio.wait([entering])
    except asyncio.CancelledError:
        await asyncio.wait([entering], timeout=_GRACE_S)
        await disconnect(client)
        entering.cancel()  # only after the disconnect: a task cancelled before that would leave its socket open
        await asyncio.wait([entering])
        raise
    # A loss before the CONNACK may also cancel a future of aiomqtt, and thereby the task itself.
    error = aiomqtt.MqttError(_NO_GREETING) if entering.cancelled() else entering.exception()
    if error is None and client.open:
        client.watch_end()  # aiomqtt may have replaced the future of the end meanwhile
        return client
    if error is None:  # aiomqtt has lost the disconnection, and would never report it
        error = aiomqtt.MqttError(_HUNG_UP)
    if isinstance(error, MqttConnectError):
        if mqtt5 and getattr(error.rc, "value", error.rc) == _OLDER_VERSION:
            raise OlderBrokerError(f"broker {address}: it does not speak MQTT 5")
        raise NoBrokerError(f"broker {address} refuses {client_id}: {_reason(error)}")
    await disconnect(client)
    hint = f"no MQTT CONNACK within {timeout_s:g} s; is it a broker?" if "timed out" in str(error) else str(error)
    if tls is not None and _NO_GREETING in hint:
        hint = await _refusal(address.host, address.port, tls, address.tls_dir, timeout_s) or hint
    raise NoBrokerError(f"broker {address}: {hint or type(error).__name__}")


async def lost(client: aiomqtt.Client) -> None:
    """Wait until the connection is lost, and raise `aiomqtt.MqttError` then."""
    async for _ in client.messages:
        raise AssertionError("messages are delivered straight")  # the queue stays empty


async def disconnect(client: Connection, *, in_peace: bool = True, for_good: bool = False) -> None:
    """Close a connection in any state; unless `in_peace`, the broker publishes the last will.

    With `for_good` the broker discards the session at once. Raises nothing: aiomqtt raises every error of the socket,
    which would end the bus instead of reconnecting it.
    """
    if for_good:
        client.end_session()
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


def _session(session_s: float, *, mqtt5: bool) -> dict[str, Any]:
    """Return the arguments of aiomqtt's client for the session's expiry at the broker."""
    if not mqtt5:
        return {"clean_session": not session_s}
    return {
        "protocol": aiomqtt.ProtocolVersion.V5,
        "clean_start": not session_s,
        "properties": _expiry(PacketTypes.CONNECT, session_s),
    }


def _expiry(packet: int, session_s: float) -> Properties:
    properties = Properties(packet)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = int(session_s)
    return properties


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


async def _refusal(host: str, port: int, tls: ssl.SSLContext, folder: Path | None, timeout_s: float) -> str:
    """Return why a broker closes connections right after the handshake, from its TLS alert; empty without one.

    In TLS 1.3 the client finishes the handshake before the broker verifies its certificate, so the alert is read
    afterwards.
    """
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls)
            try:
                await reader.read(1)
            finally:
                writer.close()
    except ssl.SSLError as error:
        return _explain(error.reason or "", folder)
    except (OSError, TimeoutError):
        pass
    return ""


def _explain(alert: str, folder: Path | None) -> str:
    issuer, subject = names_of(folder)
    ours = f"our certificate, {folder}/cert.pem of {subject!r}," if folder is not None else "our certificate"
    if "EXPIRED" in alert:
        return f"it reports that {ours} has expired: renew it by `testbed ca issue`, and compare the clocks"
    if "REVOKED" in alert:
        return f"it reports that {ours} was revoked: `testbed ca issue` makes another one"
    if any(name in alert for name in _UNTRUSTED):
        return (
            f"it does not trust {issuer or 'the authority'!r}, which signed {ours} on this port: {_DOORS}; "
            "another lab's broker trusts another authority"
        )
    if "CERTIFICATE_REQUIRED" in alert:
        return "it requires a certificate, and we have none: expected tls_dir, --tls-dir or TESTBED_TLS_DIR"
    return f"it ended the connection with the TLS alert {alert}" if "ALERT" in alert else ""
