"""The connection to libvirt: calls in threads with a deadline, events, and a new connection when the old one breaks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import libvirt

from node_agent.drivers.protocol import DriverError, SuspectError
from node_agent.drivers.virt.domain import owner_of

T = TypeVar("T")

KEEPALIVE_TRIES = 3
RECONNECT_EVERY_S = 0.5
THREADS = 32  # libvirt's default settings let five calls of a client run at once
HANG_UP_WITHIN_S = 5.0
_BUSY_POLL_S = 0.2
_log = logging.getLogger(__name__)
_loop_lock = threading.Lock()
_loop_runs = False


def _run_event_loop() -> None:
    """Serve libvirt's events and keepalive in a thread of their own, once per process and before any connection."""
    global _loop_runs  # noqa: PLW0603  # libvirt has one event implementation per process, permanently
    with _loop_lock:
        if _loop_runs:
            return
        libvirt.registerErrorHandler(lambda _context, _error: None, None)  # it would print each error
        libvirt.virEventRegisterDefaultImpl()

        def serve() -> None:
            while True:
                with contextlib.suppress(libvirt.libvirtError):
                    libvirt.virEventRunDefaultImpl()

        threading.Thread(target=serve, name="libvirt events", daemon=True).start()
        _loop_runs = True


def version_text(number: int) -> str:
    """Return a version packed by libvirt as text: 9.0.0."""
    return f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}"


class Listener(Protocol):
    """Receiver of libvirt's events; called in the event loop."""

    def domain_stopped(self, name: str) -> None:
        """A domain ended, for whatever reason."""

    def domain_arrived(self, name: str) -> None:
        """A domain arrived by migration and runs here now."""

    def domain_departs(self, name: str) -> None:
        """A domain that migrates stopped working here."""

    def job_completed(self, name: str, statistics: Mapping[str, int]) -> None:
        """A migration of a domain is over."""

    def connection_back(self) -> None:
        """The connection was lost and opened again."""


class Hypervisor:
    """One libvirt daemon; `root` is the path of its file system, not ours if it has a mount namespace."""

    def __init__(self, uri: str, listener: Listener, root: Path = Path("/"), keepalive_s: int = 5) -> None:
        self.uri = uri
        self._root = root
        self._listener = listener
        self._keepalive_s = keepalive_s
        self._loop = asyncio.get_running_loop()
        # a separate pool: a hold must not wait for a thread until a save of another guest is over
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="libvirt")
        self._connection: Any = None
        self._up = asyncio.Event()
        self._reconnecting: asyncio.Task[None] | None = None
        self._closing = False

    def file(self, path: Path) -> Path:
        """Return our path of a file of the hypervisor."""
        return self._root / path.relative_to("/")

    async def open(self, deadline_s: float) -> None:
        """Connect, or raise `DriverError`."""
        _run_event_loop()
        try:
            async with asyncio.timeout(deadline_s):
                await self._connect()
        except TimeoutError:
            raise DriverError(f"libvirt at {self.uri} did not answer within {deadline_s:g} s") from None
        except libvirt.libvirtError as error:
            raise DriverError(
                f"libvirt at {self.uri}: {error}; is libvirtd running, and may this user use it?"
            ) from error

    async def close(self) -> None:
        """Hang up and release the threads, connected or not, without waiting for a libvirt that does not answer."""
        self._closing = True
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.gather(self._reconnecting, return_exceptions=True)
        connection, self._connection = self._connection, None
        self._up.clear()
        try:
            if connection is not None:
                with contextlib.suppress(libvirt.libvirtError, TimeoutError):
                    async with asyncio.timeout(HANG_UP_WITHIN_S):
                        await self.in_thread(connection.close)
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _connect(self) -> None:
        connection = await self.in_thread(partial(libvirt.open, self.uri))
        await self.in_thread(partial(self._watch, connection))
        self._connection = connection
        self._up.set()

    def _watch(self, connection: Any) -> None:
        connection.setKeepAlive(self._keepalive_s, KEEPALIVE_TRIES)
        connection.registerCloseCallback(self._closed, None)
        connection.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, self._lifecycle, None)
        connection.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_JOB_COMPLETED, self._job, None)

    def _lifecycle(self, _connection: Any, domain: Any, event: int, detail: int, _opaque: None) -> None:
        if event == libvirt.VIR_DOMAIN_EVENT_STOPPED:
            self._post(self._listener.domain_stopped, domain.name())
        elif event == libvirt.VIR_DOMAIN_EVENT_RESUMED and detail == libvirt.VIR_DOMAIN_EVENT_RESUMED_MIGRATED:
            self._post(self._listener.domain_arrived, domain.name())
        elif event == libvirt.VIR_DOMAIN_EVENT_SUSPENDED and detail == libvirt.VIR_DOMAIN_EVENT_SUSPENDED_MIGRATED:
            self._post(self._listener.domain_departs, domain.name())

    def _job(self, _connection: Any, domain: Any, statistics: dict[str, Any], _opaque: None) -> None:
        counts = {name: int(value) for name, value in statistics.items() if isinstance(value, int)}
        self._post(self._listener.job_completed, domain.name(), counts)

    def _closed(self, connection: Any, reason: int, _opaque: None) -> None:
        self._post(self._lost, connection, reason)

    def _post(self, function: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function, *args)

    def _lost(self, connection: object, reason: int) -> None:
        if self._closing or connection is not self._connection or self._reconnecting is not None:
            return
        _log.warning("libvirt at %s hung up (reason %d): connecting again", self.uri, reason)
        self._up.clear()
        self._reconnecting = self._loop.create_task(self._reconnect(), name="reconnect to libvirt")

    async def _reconnect(self) -> None:
        while True:
            try:
                await self._connect()
            except libvirt.libvirtError as error:
                _log.debug("libvirt at %s: %s", self.uri, error)
                await asyncio.sleep(RECONNECT_EVERY_S)
            else:
                break
        self._reconnecting = None
        _log.warning("libvirt at %s is back", self.uri)
        self._listener.connection_back()

    async def call(self, deadline_s: float, function: Callable[[Any], T]) -> T:
        """Run `function(connection)` in a thread; raises `DriverError` with libvirt's message, or after the deadline.

        A call during which the connection breaks is not repeated: its effect is unknown.
        """
        try:
            async with asyncio.timeout(deadline_s):
                await self._up.wait()
                return await self.in_thread(partial(function, self._connection))
        except TimeoutError:
            state = "did not answer" if self._up.is_set() else "is away"
            raise DriverError(f"libvirt at {self.uri} {state} for {deadline_s:g} s") from None
        except libvirt.libvirtError as error:
            raise DriverError(f"libvirt: {error}") from error

    def now(self, name: str, function: Callable[[Any], T]) -> T:
        """Run `function(domain)` at once, for callers that are in a thread already; raises `DriverError`."""
        connection = self._connection
        if connection is None:
            raise DriverError(f"libvirt at {self.uri} is away")
        try:
            return function(connection.lookupByName(name))
        except libvirt.libvirtError as error:
            raise DriverError(f"guest {name}: libvirt: {error}") from error

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Run a function in one of this connection's threads."""
        return await self._loop.run_in_executor(self._threads, function)

    async def find(self, name: str, deadline_s: float) -> Any | None:
        """Return the domain of that name, or None."""
        return await self._find(name, deadline_s, lambda domain: domain)

    async def settled(self, name: str, deadline_s: float) -> None:
        """Wait until libvirt runs no job on a domain any more, such as a save that a killed agent has ordered."""
        end_s = asyncio.get_running_loop().time() + deadline_s
        while await self._find(name, deadline_s, lambda domain: bool(domain.jobInfo()[0])):
            if asyncio.get_running_loop().time() > end_s:
                raise DriverError(f"guest {name}: libvirt's job on it did not end within {deadline_s:g} s")
            await asyncio.sleep(_BUSY_POLL_S)  # libvirt sends no event at the end of a save

    async def find_own(self, name: str, deadline_s: float) -> Any | None:
        """Return the domain of that name, or None; raises `SuspectError` if the testbed did not make it.

        A node may have unrelated virtual machines. A command that creates, adopts or destroys a guest only names it,
        and only a domain's metadata identifies its owner.
        """
        found = await self._find(name, deadline_s, lambda domain: (domain, owner_of(domain.XMLDesc())))
        if found is None:
            return None
        domain, owner = found
        if not owner:
            raise SuspectError(f"guest {name}: the domain of that name here is not the testbed's: expected one of ours")
        return domain

    async def _find(self, name: str, deadline_s: float, read: Callable[[Any], T]) -> T | None:
        try:
            return await self.call(deadline_s, lambda connection: read(connection.lookupByName(name)))
        except DriverError as error:
            cause = error.__cause__
            if isinstance(cause, libvirt.libvirtError) and cause.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                return None
            raise

    async def on_domain(self, name: str, deadline_s: float, function: Callable[[Any], T]) -> T:
        """Run `function(domain)` in a thread, as `call` does; errors of libvirt name the guest."""
        try:
            return await self.call(deadline_s, lambda connection: function(connection.lookupByName(name)))
        except DriverError as error:
            if isinstance(error.__cause__, libvirt.libvirtError):
                raise DriverError(f"guest {name}: {error}") from error.__cause__
            raise
