"""The presence of an agent on the bus: its node's status, retained by the broker."""

from __future__ import annotations

from testbed import __version__
from testbed.bus import topics
from testbed.bus.messages import NodeFacts, NodeStatus, encode
from testbed.bus.protocol import Presence


def presence_of(lab: str, node: str, boot: str, clock: str, facts: NodeFacts) -> Presence:
    """Return the presence of the agent of a node; `boot` names its life, `clock` the clock of its fences."""

    def status(*, online: bool, reason: str = "", left: bool = False) -> bytes:
        told = facts if online else None
        return encode(
            NodeStatus(
                node=node, online=online, boot=boot, facts=told, reason=reason, left=left, release=__version__,
                clock=clock,
            )
        )  # fmt: skip

    return Presence(
        topic=topics.node_topic(lab, node, "status"),
        online=lambda: status(online=True),
        offline=status(online=False, reason="its agent ended", left=True),
        lost=status(online=False, reason="its agent vanished"),
    )
