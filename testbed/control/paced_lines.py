"""Rate limit per node for screen lines that nodes cause: a burst, then one line every few seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from testbed.bus.quotas import Bucket, Quota

_QUOTA = Quota(burst=20, per_s=0.2, message_bytes=1)


@dataclass(slots=True)
class _Node:
    bucket: Bucket
    left_out: int = 0


class PacedLines:
    """Passes lines to `say`; a node's lines beyond its quota are counted, and its next line has their number."""

    def __init__(self, say: Callable[[str], None], now_s: Callable[[], float]) -> None:
        self._say = say
        self._now_s = now_s
        self._nodes: dict[str, _Node] = {}

    def put(self, name: str, text: str) -> None:
        """Show a line that this node has caused, or count it as left out."""
        node = self._nodes.setdefault(name, _Node(Bucket(_QUOTA, self._now_s)))
        if not node.bucket.take(1):
            node.left_out += 1
            return
        more = f" (and {node.left_out} lines about {name} that are left out)" if node.left_out else ""
        node.left_out = 0
        self._say(text + more)
