"""A stream of updates for any number of browsers; a slow browser neither delays the others nor makes memory grow."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

QUEUE_MESSAGES = 32
HISTORY_MESSAGES = 64
HISTORY_BYTES = 2 << 20


def event_text(event: str, event_id: str, data: Mapping[str, Any]) -> bytes:
    """Return one server-sent event; its data is one line, because JSON has no line breaks."""
    return b"event: %b\nid: %b\ndata: %b\n\n" % (event.encode(), event_id.encode(), msgspec.json.encode(data))


class Subscription:
    """The queue of updates for one browser; if more than `QUEUE_MESSAGES` wait, it gets the whole page instead."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._waiting: deque[bytes] = deque()
        self._stale = True
        self._news = asyncio.Event()
        self._closed = False
        self.drops = 0
        self._news.set()

    def put(self, message: bytes) -> None:
        """Add a message; if too many wait, drop all and send the whole page next."""
        if self._stale:
            return
        if len(self._waiting) >= QUEUE_MESSAGES:
            self.restart()
            self.drops += 1
            return
        self._waiting.append(message)
        self._news.set()

    def restart(self) -> None:
        """Make the whole page the next message."""
        self._waiting.clear()
        self._stale = True
        self._news.set()

    def resume(self, messages: list[bytes]) -> None:
        """Continue with these missed messages instead of the whole page."""
        self._stale = False
        self._waiting.extend(messages)

    def close(self) -> None:
        """End the stream."""
        self._closed = True
        self._news.set()

    async def next(self, within_s: float) -> bytes | None:
        """Return the next message, a heartbeat if there is none within `within_s` seconds, None at the end."""
        try:
            async with asyncio.timeout(within_s):
                while not (self._closed or self._stale or self._waiting):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return self._hub.beat()
        if self._closed:
            return None
        if self._stale:
            self._stale = False
            return self._hub.snapshot()
        return self._waiting.popleft()


class Hub:
    """Publisher of updates to all browsers, and of whole pages, from `make_snapshot`, to browsers that need one.

    The id of an event consists of an id of this process and the number of the update. A browser that reconnects with a
    recent id gets only the updates that it missed.
    """

    def __init__(self, make_snapshot: Callable[[], Mapping[str, Any]]) -> None:
        self.news_unix_ms = 0.0
        self._make_snapshot = make_snapshot
        self._process = secrets.token_hex(4)
        self._number = 0
        self._history: deque[tuple[int, bytes]] = deque(maxlen=HISTORY_MESSAGES)
        self._snapshot: tuple[int, bytes] | None = None
        self._subscriptions: set[Subscription] = set()

    def __len__(self) -> int:
        return len(self._subscriptions)

    def subscribe(self, last_id: str | None = None) -> Subscription:
        """Add a browser whose last event was `last_id`."""
        subscription = Subscription(self)
        missed = self._missed(last_id)
        if missed is not None:
            subscription.resume(missed)
        self._subscriptions.add(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Remove a browser."""
        self._subscriptions.discard(subscription)

    def publish(self, changes: Mapping[str, Any]) -> None:
        """Send changes to all browsers."""
        self._number += 1
        message = event_text("update", self._id(), {**changes, **self._clock()})
        self._history.append((self._number, message))
        while sum(len(kept) for _, kept in self._history) > HISTORY_BYTES:
            self._history.popleft()
        for subscription in self._subscriptions:
            subscription.put(message)

    def restart(self) -> None:
        """Send the whole page to all browsers, because it is about another run now."""
        self._number += 1
        self._history.clear()
        for subscription in self._subscriptions:
            subscription.restart()

    def snapshot(self) -> bytes:
        """Return the whole page, which is made once for all browsers."""
        if self._snapshot is None or self._snapshot[0] != self._number:
            data = {**self._make_snapshot(), **self._clock()}
            self._snapshot = self._number, event_text("snapshot", self._id(), data)
        return self._snapshot[1]

    def beat(self) -> bytes:
        """Return a heartbeat."""
        return event_text("beat", self._id(), self._clock())

    def close(self) -> None:
        """End all streams."""
        for subscription in self._subscriptions:
            subscription.close()

    def _id(self) -> str:
        return f"{self._process}.{self._number}"

    def _clock(self) -> dict[str, float]:
        return {"unix_ms": round(time.time() * 1e3), "news_unix_ms": round(self.news_unix_ms)}

    def _missed(self, last_id: str | None) -> list[bytes] | None:
        """Return the messages after `last_id`, None if that id is no longer kept."""
        process, _, number_text = (last_id or "").partition(".")
        if process != self._process or not number_text.isdecimal():
            return None
        number = int(number_text)
        if number == self._number:
            return []
        numbers = [kept for kept, _ in self._history]
        if number + 1 not in numbers or number > self._number:
            return None
        return [message for kept, message in self._history if kept > number]
