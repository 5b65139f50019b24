"""Quotas on the bus: what one client may send, and what a broker keeps for one that is away or slow.

Mosquitto limits bytes and numbers of messages, but no rate: a controller limits that (`testbed.control.node_quotas`).
"""

from __future__ import annotations

MOST_MESSAGE_BYTES = 1 << 20  # the largest reply, a watch of as many samples as are allowed, has nine tenths of it
MOST_PACKET_BYTES = MOST_MESSAGE_BYTES + (1 << 10)  # a message with its topic and header
MOST_QUEUED_MESSAGES = 20_000  # 100 nodes, a report per second each, for longer than a session outlives its client
MOST_QUEUED_BYTES = 32 << 20  # per client
MOST_BROKER_BYTES = 256 << 20  # all of the broker: it drops the client whose packet would need more, or ends
AGENT_SESSION_S = 3600.0  # for which the broker keeps the session of a client that vanished
CONTROLLER_SESSION_S = 120.0


def mosquitto_quotas() -> list[str]:
    """Return the lines of mosquitto.conf that bound what clients can make Mosquitto (2.0 or later) keep.

    A packet above `max_packet_size` ends the connection of its sender. A message for a client whose queue is full is
    dropped. Sessions of clients that speak MQTT 5 end by the client's own word, others after an hour away, which is
    the shortest time that Mosquitto knows.
    """
    return [
        f"max_packet_size {MOST_PACKET_BYTES}",
        f"max_queued_messages {MOST_QUEUED_MESSAGES}",
        f"max_queued_bytes {MOST_QUEUED_BYTES}",
        f"memory_limit {MOST_BROKER_BYTES}",
        "persistent_client_expiration 1h",
    ]
