"""The bus over MQTT: reconnects and resubscribes by itself, and keeps messages until they are acknowledged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Self

import aiomqtt

from testbed.bus.address import BrokerAddress
from testbed.bus.certificate import own_name
from testbed.bus.comebacks import Comebacks
from testbed.bus.connection import Connection, OlderBrokerError, connect, disconnect, lost
from testbed.bus.inbox import Inbox
from testbed.bus.outbox import Outbox, Parcel, QueueingBus
from testbed.bus.protocol import Bus, BusError, Handler, Message, Presence
from testbed.bus.quotas import AGENT_SESSION_S
from testbed.errors import UserError

__all__ = ["BrokerAddress", "Bus", "BusError", "Handler", "Message", "MqttBus", "Presence"]

_WINDOW = 16  # messages on the wire without acknowledgement
_REFUSED = 0x80

_log = logging.getLogger(__name__)


class MqttBus(QueueingBus):
    """An MQTT client with the interface `Bus`.

    `client_id` must be unique at the broker. With `keep_session` the broker keeps a session with QoS 1 messages for
    this id while the client is disconnected; a broker of MQTT 5 keeps it for at most `session_s` seconds. With
    `end_session` closing the bus ends the session. Entering raises `BusError` if the first connection fails or takes
    longer than `connect_timeout_s`; a later loss only leads to a reconnection. At most `outbox_limit` QoS 1 messages
    wait. A message that is not acknowledged within `ack_timeout_s` makes the connection count as lost. Closing takes at
    most `close_timeout_s` to send waiting messages.
    """

    def __init__(
        self,
        address: BrokerAddress,
        client_id: str,
        presence: Presence | None = None,
        *,
        keep_session: bool = True,
        session_s: float = AGENT_SESSION_S,
        end_session: bool = False,
        connect_timeout_s: float = 5.0,
        ack_timeout_s: float = 10.0,
        close_timeout_s: float = 2.0,
        keepalive_s: int = 15,
        outbox_limit: int = 10_000,
    ) -> None:
        self.address = address
        self.client_id = client_id
        self.connected = asyncio.Event()
        self.on_lost: Callable[[], None] = lambda: None
        self._presence = presence
        self._session_s = session_s if keep_session else 0.0
        self._end_session = end_session
        self._mqtt5 = True  # until the broker refuses MQTT 5
        self._comebacks = Comebacks(asyncio.get_running_loop().time)
        self._connect_timeout_s = connect_timeout_s
        self._ack_timeout_s = ack_timeout_s
        self._close_timeout_s = close_timeout_s
        self._keepalive_s = keepalive_s
        self._outbox = Outbox(outbox_limit, _WINDOW)
        self._inbox = Inbox()
        self._established: dict[str, asyncio.Future[None]] = {}
        self._subscribed = asyncio.Event()
        self._client: Connection | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._open = False
        self._parted = False
        self._ending = False

    async def __aenter__(self) -> Self:
        self.party = await asyncio.to_thread(own_name, self.address.tls_dir if self.address.tls else None)
        client = await self._connect()
        self._open = True
        self._tasks = [
            asyncio.create_task(self._inbox.run(), name=f"bus {self.client_id}: handlers"),
            asyncio.create_task(self._run(client), name=f"bus {self.client_id}"),
        ]
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await self.connected.wait()
        except TimeoutError:
            await self._close()
            raise BusError(f"broker {self.address}: it accepts {self.client_id}, but does not answer") from None
        except BaseException:
            await self._close()  # the presence may have been published already: publish `offline`
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._close()

    async def subscribe(self, pattern: str, handler: Handler, qos: int = 1) -> None:
        """See `Bus.subscribe`."""
        self._check_open(pattern)
        self._inbox.add(pattern, handler, qos)
        established = self._established[pattern] = asyncio.get_running_loop().create_future()
        self._subscribed.set()
        try:
            await established
        except BusError:
            self._inbox.remove(pattern)
            raise
        finally:
            del self._established[pattern]

    # --- one connection after the other ---

    async def _connect(self) -> Connection:
        if self._mqtt5:
            try:
                return await self._connect_once()
            except OlderBrokerError as error:
                _log.debug("bus %s: %s: using MQTT 3.1.1", self.client_id, error)
                self._mqtt5 = False
        return await self._connect_once()

    async def _connect_once(self) -> Connection:
        return await connect(
            self.address,
            self.client_id,
            self._presence,
            self._inbox.put,
            session_s=self._session_s,
            timeout_s=self._connect_timeout_s,
            keepalive_s=self._keepalive_s,
            mqtt5=self._mqtt5,
        )

    async def _run(self, client: Connection) -> None:
        while True:
            self._comebacks.made()
            try:
                await self._serve(client)
            finally:
                self._client = None
                self.connected.clear()
                self._outbox.rewind()
                self.on_lost()
                in_peace = self._presence is None or self._parted
                await disconnect(client, in_peace=in_peace, for_good=in_peace and self._ending and self._end_session)
            if self._ending:  # of a cancellation and a simultaneous loss a task group reports only the loss
                return
            why = self._comebacks.lost(self.client_id, taken_over=client.taken_over)
            if why:
                _log.error("bus %s: %s", self.client_id, why)
            client = await self._reconnect()

    async def _reconnect(self) -> Connection:
        while True:
            await asyncio.sleep(self._comebacks.wait_s())
            try:
                client = await self._connect()
            except (BusError, UserError) as error:  # UserError: our certificate may have expired meanwhile
                _log.warning("bus %s: %s", self.client_id, error)
            else:
                _log.info("bus %s: connected again", self.client_id)
                return client

    async def _serve(self, client: Connection) -> None:
        client.pending_calls_threshold = 2 * _WINDOW  # the window bounds them; no warning needed
        patterns: set[str] = set()
        name = f"bus {self.client_id}"
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(lost(client), name=f"{name}: loss")
                await self._subscribe_missing(client, patterns)
                if self._presence is not None:
                    shown = self._presence
                    await client.publish(shown.topic, shown.online(), 1, shown.retain, timeout=self._ack_timeout_s)
                tasks.create_task(self._send(client), name=f"{name}: send")
                tasks.create_task(self._subscribe_later(client, patterns), name=f"{name}: subscribe")
                self._client = client
                self.connected.set()
        except* aiomqtt.MqttError as losses:
            _log.warning("bus %s: connection to %s lost: %s", self.client_id, self.address, _cause(losses))
        except* Exception:  # noqa: BLE001  logged; any error leads to a new connection
            _log.exception("bus %s: connection to %s given up", self.client_id, self.address)

    async def _send(self, client: Connection) -> None:
        async with asyncio.TaskGroup() as flights:
            while True:
                flights.create_task(self._fly(client, await self._outbox.next()), name=f"bus {self.client_id}: message")

    async def _fly(self, client: Connection, parcel: Parcel) -> None:
        message = parcel.message
        await client.publish(message.topic, message.payload, 1, message.retain, timeout=self._ack_timeout_s)
        self._outbox.acknowledge(parcel)

    async def _send_once(self, message: Message) -> None:
        client = self._client
        if client is not None:
            try:
                await client.publish(message.topic, message.payload, 0, message.retain)
            except aiomqtt.MqttError as error:
                _log.debug("bus %s: %s: lost: %s", self.client_id, message.topic, error)

    async def _subscribe_later(self, client: Connection, patterns: set[str]) -> None:
        while True:
            await self._subscribed.wait()
            await self._subscribe_missing(client, patterns)

    async def _subscribe_missing(self, client: Connection, patterns: set[str]) -> None:
        self._subscribed.clear()
        for pattern, (_, qos) in tuple(self._inbox.by_pattern.items()):
            if pattern in patterns:
                continue
            codes = await client.subscribe(pattern, qos, timeout=self._ack_timeout_s)
            patterns.add(pattern)
            refused = any(getattr(code, "value", code) >= _REFUSED for code in codes)
            waiter = self._established.get(pattern)
            if refused:
                error = BusError(f"broker {self.address} does not let {self.client_id} subscribe to {pattern}")
                if waiter is None:
                    _log.error("%s", error)
                elif not waiter.done():
                    waiter.set_exception(error)
            else:
                self._inbox.begin(pattern)
                if waiter is not None and not waiter.done():
                    waiter.set_result(None)

    # --- the end ---

    async def _close(self) -> None:
        self._open = False
        try:
            async with asyncio.timeout(self._close_timeout_s):
                if self._presence is not None:  # after a clean disconnect a broker does not publish the will
                    shown = self._presence
                    self._outbox.put(Message(shown.topic, shown.offline, retain=shown.retain))
                await self._outbox.drained()
                self._parted = True
        except TimeoutError:
            _log.warning("bus %s: closed with %d messages unsent", self.client_id, len(self._outbox))
        except BusError as full:
            _log.warning("bus %s: closed without publishing its offline presence: %s", self.client_id, full)
        finally:
            await self._end_tasks()

    async def _end_tasks(self) -> None:
        self._ending = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        closed = BusError(f"the bus of {self.client_id} was closed")
        self._outbox.fail(closed)
        for waiter in self._established.values():
            if not waiter.done():
                waiter.set_exception(closed)


def _cause(error: BaseException) -> BaseException:
    """Return the first error that is not a group of others."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
