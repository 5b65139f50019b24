"""Queue of received messages: handlers by topic pattern, called one at a time in the order of arrival."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque

from testbed.bus.protocol import Handler
from testbed.bus.topics import check_pattern, matches
from testbed.errors import printable

_UNCLAIMED = 1000
_SHOWN_CHARS = 200
_TRACEBACK_EVERY_S = 60.0  # of one pattern
MOST_WAITING_BYTES = 16 << 20  # on one topic, and of all messages without a handler
EACH_BYTES = 256  # per message beside its topic and payload: objects and queue take about 150

_log = logging.getLogger(__name__)


class Inbox:
    """One handler per pattern, and the messages that wait for them.

    The inbox belongs to a bus, not to one of its connections: received messages are handled even if the connection
    breaks. A broker sends queued messages before the client has subscribed again. So messages without a handler wait
    for one: at most the last 1000 of them, and 16 MiB. At most 16 MiB wait on one topic: a sender that is faster than
    its handler loses its own messages, not those of others. The size of a message includes payload, topic and the
    objects that hold them. Lost messages are counted in `dropped`.
    """

    def __init__(self) -> None:
        self.by_pattern: dict[str, tuple[Handler, int]] = {}
        self._begun: set[str] = set()
        self._arrived: deque[tuple[str, bytes]] = deque()
        self._unclaimed: deque[tuple[str, bytes]] = deque()
        self.unclaimed_bytes = 0
        self._changed = asyncio.Event()
        self._waiting_bytes: dict[str, int] = {}  # by topic
        self.dropped: Counter[str] = Counter()  # messages, by topic
        self._failures: dict[str, tuple[float, int]] = {}  # by pattern: when a failure was logged, and the number since

    @property
    def waiting(self) -> int:
        """The number of messages that have arrived and are not handled yet."""
        return len(self._arrived)

    def add(self, pattern: str, handler: Handler, qos: int) -> None:
        """Note a handler, which is called from `begin` on; a second one for a pattern is a programming error."""
        if check_pattern(pattern) in self.by_pattern:
            raise ValueError(f"pattern {pattern!r} has a handler already")
        self.by_pattern[pattern] = (handler, qos)

    def begin(self, pattern: str) -> None:
        """Call the handler of a pattern from now on, beginning with the messages that have waited for it.

        Call this when the broker has confirmed the subscription. A broker sends the messages of a session before it
        sends what was retained on topics that were subscribed to earlier, such as the lease by which a command is
        judged. So the handler is called after those of all messages that have arrived by now.
        """
        if pattern in self._begun:
            return
        self._begun.add(pattern)
        claimed = [message for message in self._unclaimed if matches(pattern, message[0])]
        rest = [message for message in self._unclaimed if not matches(pattern, message[0])]
        self._unclaimed = deque(rest)
        for topic, payload in claimed:
            size_bytes = _size_bytes(topic, payload)
            self.unclaimed_bytes -= size_bytes
            self._waiting_bytes[topic] = self._waiting_bytes.get(topic, 0) + size_bytes
        later = [message for message in self._arrived if matches(pattern, message[0])]
        others = [message for message in self._arrived if not matches(pattern, message[0])]
        self._arrived = deque((*others, *claimed, *later))
        self._changed.set()

    def remove(self, pattern: str) -> None:
        """Forget a handler."""
        self.by_pattern.pop(pattern)
        self._begun.discard(pattern)

    def put(self, topic: str, payload: bytes) -> None:
        """Enqueue a message that has arrived."""
        waiting_bytes = self._waiting_bytes.get(topic, 0) + _size_bytes(topic, payload)
        if waiting_bytes > MOST_WAITING_BYTES:
            self._drop(topic, "messages come faster than they can be handled")
            return
        self._waiting_bytes[topic] = waiting_bytes
        self._arrived.append((topic, payload))
        self._changed.set()

    async def run(self) -> None:
        """Call handlers until cancelled; their exceptions are logged."""
        while True:
            while self._arrived:
                topic, payload = self._arrived.popleft()
                self._forget(topic, _size_bytes(topic, payload))
                await self._deliver(topic, payload)
                await asyncio.sleep(0)  # let other tasks run during a burst of messages
            self._changed.clear()
            await self._changed.wait()

    def _forget(self, topic: str, size_bytes: int) -> None:
        left_bytes = self._waiting_bytes.get(topic, 0) - size_bytes
        if left_bytes > 0:
            self._waiting_bytes[topic] = left_bytes
        else:
            self._waiting_bytes.pop(topic, None)

    async def _deliver(self, topic: str, payload: bytes) -> None:
        found = [(p, self.by_pattern[p][0]) for p in self.by_pattern if p in self._begun and matches(p, topic)]
        if not found:
            self._keep(topic, payload)
        for pattern, handler in found:
            try:
                await handler(topic, payload)
            except Exception as error:  # noqa: BLE001  a failed handler must not stop the delivery to others
                self._failed(pattern, f"{printable(topic, _SHOWN_CHARS)} ({len(payload)} bytes)", error)

    def _keep(self, topic: str, payload: bytes) -> None:
        """Keep a message until it has a handler; beyond the limits, the oldest such messages are dropped."""
        self._unclaimed.append((topic, payload))
        self.unclaimed_bytes += _size_bytes(topic, payload)
        while len(self._unclaimed) > _UNCLAIMED or self.unclaimed_bytes > MOST_WAITING_BYTES:
            oldest, its_payload = self._unclaimed.popleft()
            self.unclaimed_bytes -= _size_bytes(oldest, its_payload)
            self._drop(oldest, "too many messages wait for a handler")

    def _drop(self, topic: str, why: str) -> None:
        if not self.dropped[topic]:
            _log.warning("%s: %s: some are dropped", printable(topic, _SHOWN_CHARS), why)
        self.dropped[topic] += 1

    def _failed(self, pattern: str, message: str, error: Exception) -> None:
        """Log a failure with its traceback, at most once per minute and pattern, as a sender can cause any number."""
        now_s = asyncio.get_running_loop().time()
        since_s, left_out = self._failures.get(pattern, (float("-inf"), 0))
        if now_s - since_s < _TRACEBACK_EVERY_S:
            self._failures[pattern] = since_s, left_out + 1
            return
        self._failures[pattern] = now_s, 0
        more = f" (and on {left_out} more that are left out)" if left_out else ""
        _log.error("handler of %s failed on a message of %s%s", pattern, message, more, exc_info=error)


def _size_bytes(topic: str, payload: bytes) -> int:
    return len(topic) + len(payload) + EACH_BYTES
