"""The embedded MQTT broker, which needs no installation: amqtt in this process, with fixes for its faults.

Faults of amqtt 0.12 that are fixed here:

* A client that reconnects before its old connection is known to be dead gets no more messages.
* A silent client never times out, so its last will is never published.
* Messages of QoS 0 are forwarded, and kept, as QoS 1.
* Subscriptions that change while retained messages are sent end the session of another client.
* Connections that do not speak MQTT stay open.
* Anonymous clients have no queue.
* A shutdown during traffic may block forever.
* A client that speaks MQTT 5 gets no reply.
* Messages of any size and number are queued for disconnected clients.

Two limits remain: messages in transit are lost when a connection breaks, and no state outlives the process. Mosquitto
does not have these limits.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from amqtt.adapters import StreamReaderAdapter, StreamWriterAdapter
from amqtt.broker import Broker
from amqtt.errors import BrokerError
from amqtt.mqtt.protocol.broker_handler import BrokerProtocolHandler
from amqtt.plugins.base import BaseAuthPlugin
from amqtt.session import Session

from testbed.bus.address import BrokerAddress
from testbed.bus.protocol import BusError
from testbed.bus.quotas import MOST_MESSAGE_BYTES, MOST_QUEUED_BYTES, MOST_QUEUED_MESSAGES
from testbed.bus.topics import never_retained

if TYPE_CHECKING:
    from _collections_abc import dict_items

_USER = "testbed"
_SHUTDOWN_TIMEOUT_S = 5.0
_CONNECT = 0x10
_LONGEST_CONNECT = 1 << 18  # bytes: names, password and will of 64 KiB each
_MQTT_5 = 5
_REFUSE_VERSION = b"\x20\x02\x00\x01"  # a CONNACK of MQTT 3.1.1: unacceptable protocol version


class _Snapshots(dict[str, Any]):
    """A dictionary that may change during an iteration."""

    def __iter__(self) -> Iterator[str]:
        return iter(list(super().__iter__()))

    def items(self) -> dict_items[str, Any]:
        """Return the current items."""
        return dict(super().items()).items()


class _FromFirst(StreamReaderAdapter):  # type: ignore[misc]  # amqtt has no type information
    """A stream reader that first returns bytes that were read before."""

    def __init__(self, first: bytes, rest: asyncio.StreamReader) -> None:
        super().__init__(rest)
        self._first = first

    async def read(self, n: int = -1) -> bytes:
        """Return `n` bytes."""
        taken, self._first = self._first[:n], self._first[n:]
        if len(taken) == n:
            return taken
        more: bytes = await super().read(n - len(taken))
        return taken + more


async def _connect_packet(reader: asyncio.StreamReader) -> bytes:
    """Read the first packet of a connection, which must be a CONNECT; raises `ValueError` or `EOFError`."""
    packet = bytearray(await reader.readexactly(2))
    while packet[-1] & 0x80 and len(packet) < 5:  # the length has four octets at most
        packet += await reader.readexactly(1)
    length = sum((octet & 0x7F) << (7 * place) for place, octet in enumerate(packet[1:]))
    if packet[0] != _CONNECT or length > _LONGEST_CONNECT:
        raise ValueError("no CONNECT of MQTT")
    return bytes(packet) + await reader.readexactly(length)


def _version(connect: bytes) -> int:
    """Return the protocol version in a CONNECT packet, 0 if it has none."""
    begin = next(place for place, octet in enumerate(connect) if place and not octet & 0x80) + 1
    name_bytes = int.from_bytes(connect[begin : begin + 2], "big")
    return int.from_bytes(connect[begin + 2 + name_bytes : begin + 3 + name_bytes], "big")


class PasswordAuth(BaseAuthPlugin):  # type: ignore[misc]  # amqtt has no type information
    """Accepts clients that have the password; amqtt queues messages only for sessions with a user name."""

    @dataclass
    class Config:
        """The password, as amqtt's plug-in loader expects it."""

        password: str

    async def authenticate(self, *, session: Session) -> bool:
        """Compare user and password, the password in constant time."""
        return session.username == _USER and hmac.compare_digest(
            (session.password or "").encode(), self.config.password.encode()
        )


class _Broker(Broker):  # type: ignore[misc]  # amqtt has no type information
    """amqtt's broker, with the fixes."""

    def __init__(self, config: dict[str, object]) -> None:
        super().__init__(config)
        self._subscriptions = _Snapshots()
        self._connections: dict[asyncio.Task[Any], tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        self._in_hand: dict[str, int] = {}  # QoS of the message that is being forwarded from each client
        self._queued_bytes: dict[str, int] = {}  # queued for each client that is away

    @property
    def port(self) -> int:
        """The TCP port of the listener."""
        port: int = self._servers["default"].instance.sockets[0].getsockname()[1]
        return port

    async def stream_connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, listener_name: str
    ) -> None:
        """Serve a connection, and close it in every case."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a connection is served by a task of its own")
        self._connections[task] = (reader, writer)
        try:
            first = await _connect_packet(reader)
            if _version(first) == _MQTT_5:  # amqtt would read its properties as lengths, and wait for more bytes
                writer.write(_REFUSE_VERSION)
                await writer.drain()
                return
            await self.external_connected(_FromFirst(first, reader), StreamWriterAdapter(writer), listener_name)
        except (EOFError, ValueError, ConnectionError):
            return
        finally:
            writer.close()
            del self._connections[task]

    async def shutdown(self) -> None:
        """End every connection, then the broker."""
        for server in self._servers.values():
            server.instance.close()
        for reader, writer in self._connections.values():
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # typed as the half that writes
            reader.feed_eof()
        if self._connections:
            await asyncio.wait(tuple(self._connections), timeout=_SHUTDOWN_TIMEOUT_S)
        await super().shutdown()

    async def _client_message_loop(self, session: Session, handler: BrokerProtocolHandler) -> None:
        if not session.transitions.is_connected():
            session.transitions.connect()  # the replaced connection has ended meanwhile
        if session.keep_alive > 0:
            closing: set[asyncio.Task[None]] = set()
            handler.handle_read_timeout = lambda: closing.add(
                asyncio.create_task(handler.handle_connection_closed(), name="embedded broker: give up a client")
            )
        await super()._client_message_loop(session, handler)

    async def _handle_message_delivery(
        self, session: Session, handler: BrokerProtocolHandler, waiter: asyncio.Future[Any]
    ) -> bool:
        self._in_hand[session.client_id] = getattr(waiter.result(), "qos", 1)
        try:
            goes_on: bool = await super()._handle_message_delivery(session, handler, waiter)
        finally:
            del self._in_hand[session.client_id]
        return goes_on

    async def retain_message(
        self, source_session: Session | None, topic_name: str | None, data: bytes | None, qos: int | None = None
    ) -> None:
        """Keep a message for later subscribers, on topics with retained messages."""
        if topic_name is None or not never_retained(topic_name):
            await super().retain_message(source_session, topic_name, data, qos)

    async def _retain_broadcast_message(self, broadcast: dict[str, Any], qos: int, target_session: Session) -> None:
        queue = target_session.retained_messages
        waiting_bytes = self._queued_bytes.get(target_session.client_id, 0) if queue.qsize() else 0
        waiting_bytes += len(broadcast["data"])
        if queue.qsize() < MOST_QUEUED_MESSAGES and waiting_bytes <= MOST_QUEUED_BYTES:
            self._queued_bytes[target_session.client_id] = waiting_bytes
            await super()._retain_broadcast_message(broadcast, qos, target_session)

    async def _broadcast_message(
        self, session: Session | None, topic: str, data: bytes, force_qos: int | None = None
    ) -> None:
        if session is not None and self._in_hand.get(session.client_id) == 0:
            force_qos = 0
        if len(data) > MOST_MESSAGE_BYTES:
            return
        await super()._broadcast_message(session, topic, data, force_qos)

    async def _handle_disconnect(
        self, session: Session, handler: BrokerProtocolHandler, waiter: asyncio.Future[Any]
    ) -> None:
        await super()._handle_disconnect(session, handler, waiter)
        current = self._get_handler(session)
        if current is not None and current is not handler:
            session.transitions.connect()  # another connection has taken the session over, and is alive


@asynccontextmanager
async def embedded_broker(port: int = 0, password: str = "") -> AsyncIterator[BrokerAddress]:
    """Run the broker on the loopback interface; the yielded address has `password`, or a new one if it is empty."""
    logging.getLogger("amqtt").setLevel(logging.CRITICAL)  # it logs ordinary disconnects as errors
    logging.getLogger("transitions").setLevel(logging.CRITICAL)
    password = password or secrets.token_urlsafe(24)
    broker = _Broker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}},
            "plugins": {f"{__name__}.PasswordAuth": {"password": password}},
        }
    )
    try:
        await broker.start()
    except BrokerError as error:
        raise BusError(f"embedded broker at 127.0.0.1:{port}: {error.__cause__ or error}") from None
    try:
        yield BrokerAddress("127.0.0.1", broker.port, _USER, password)
    finally:
        await broker.shutdown()
