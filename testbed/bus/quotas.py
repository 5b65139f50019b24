"""Quotas on the bus: messages that one client may send, and that a broker queues for an absent or slow client.

Mosquitto limits the bytes and the number of messages, but not their rate: a controller limits the rate (`Bucket`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

MOST_MESSAGE_BYTES = 1 << 20  # the largest reply, to a watch with the most samples, has nine tenths of this
MOST_PACKET_BYTES = MOST_MESSAGE_BYTES + (1 << 10)  # a message with its topic and header
MOST_QUEUED_MESSAGES = 20_000  # one report per second of 100 nodes, for longer than a session outlives its client
MOST_QUEUED_BYTES = 32 << 20  # per client
MOST_BROKER_BYTES = 256 << 20  # of the whole broker: beyond that it disconnects the packet's client, or ends
AGENT_SESSION_S = 3600.0  # time for which the broker keeps the session of a disconnected client
CONTROLLER_SESSION_S = 120.0


def mosquitto_quotas() -> list[str]:
    """Return the lines of mosquitto.conf that bound Mosquitto's (2.0 or later) memory for clients.

    A packet above `max_packet_size` ends the connection of its sender. A message for a client whose queue is full is
    dropped. Clients that speak MQTT 5 set the expiry of their own session. Other sessions expire after an hour, the
    shortest time that Mosquitto supports.
    """
    return [
        f"max_packet_size {MOST_PACKET_BYTES}",
        f"max_queued_messages {MOST_QUEUED_MESSAGES}",
        f"max_queued_bytes {MOST_QUEUED_BYTES}",
        f"memory_limit {MOST_BROKER_BYTES}",
        "persistent_client_expiration 1h",
    ]


@dataclass(frozen=True, slots=True)
class Quota:
    """At most `burst` messages at once, then `per_s` per second; a message counts as one per `message_bytes` bytes."""

    burst: float
    per_s: float
    message_bytes: int


class Bucket:
    """Token bucket of a quota, refilled by the clock `now_s`."""

    def __init__(self, quota: Quota, now_s: Callable[[], float]) -> None:
        self._quota = quota
        self._now_s = now_s
        self._left = quota.burst
        self._at_s = now_s()

    def take(self, size_bytes: int) -> bool:
        """Return whether a message of this size is within the quota; a large one counts as several."""
        return self.charge(max(1.0, size_bytes / self._quota.message_bytes))

    def charge(self, cost: float) -> bool:
        """Return whether `cost` more messages are within the quota."""
        now_s, quota = self._now_s(), self._quota
        self._left = min(quota.burst, self._left + (now_s - self._at_s) * quota.per_s)
        self._at_s = now_s
        if cost > self._left:
            return False
        self._left -= cost
        return True
