"""Telemetry of nodes and guests from line protocol: the latest sample of each, and the used cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from testbed.measure.line_protocol import parse_line

GUEST_KEPT_NS = 4 * 10**9


@dataclass(slots=True)
class GuestUse:
    """The latest sample of a guest; `used_cores` is the mean between its last two samples, None for a single sample.

    `cap_cores` is the cap in force, None if unknown. `share_cores` is the share of a guest that competes by shares.
    `bank_cores` is the content of its job's bank if the bank is on this guest's node.
    """

    time_ns: int
    cpu_s: float
    cap_cores: float | None
    rss_mib: float
    used_cores: float | None = None
    share_cores: float | None = None
    bank_cores: float | None = None


@dataclass(slots=True)
class NodeUse:
    """The latest sample of a node; `guests` by (job, task)."""

    time_ns: int = 0
    cpu_frac: float = 0.0
    memory_used_mib: float = 0.0
    guests: dict[tuple[int, int], GuestUse] = field(default_factory=dict)


class Telemetry:
    """The latest samples of nodes and guests, `by_node` name; points of other measurements are ignored."""

    def __init__(self) -> None:
        self.by_node: dict[str, NodeUse] = {}
        self.has_shares = False  # whether any guest has competed by shares

    def feed(self, line: bytes) -> str | None:
        """Process one line; return the name of its node, None for other measurements and for invalid lines."""
        if not line.startswith((b"node,", b"guest,")):
            return None
        try:
            point = parse_line(line.decode())
            numbers = {name: float(value) for name, value in point.fields.items()}
            name = point.tags["node"]
            if point.measurement == "guest":
                key = int(point.tags["job"]), int(point.tags["task"])
                self._guest(self.by_node.setdefault(name, NodeUse()), key, point.time_ns, numbers)
                self.has_shares |= "share_cores" in numbers
            else:
                self._node(self.by_node.setdefault(name, NodeUse()), point.time_ns, numbers)
        except (ValueError, KeyError):  # a line of another version, which the page can do without
            return None
        return name

    @staticmethod
    def _node(node: NodeUse, time_ns: int, numbers: Mapping[str, float]) -> None:
        node.cpu_frac, node.memory_used_mib = numbers["cpu_frac"], numbers["memory_used_mib"]
        node.time_ns = time_ns
        gone = [key for key, guest in node.guests.items() if guest.time_ns < time_ns - GUEST_KEPT_NS]
        for key in gone:
            del node.guests[key]

    @staticmethod
    def _guest(node: NodeUse, key: tuple[int, int], time_ns: int, numbers: Mapping[str, float]) -> None:
        cpu_s = numbers["cpu_s"]
        now = GuestUse(
            time_ns, cpu_s, numbers.get("cap_cores"), numbers["rss_mib"], share_cores=numbers.get("share_cores"),
            bank_cores=numbers.get("bank_cores"),
        )  # fmt: skip
        before = node.guests.get(key)
        if before is not None and time_ns > before.time_ns and cpu_s >= before.cpu_s:
            now.used_cores = (cpu_s - before.cpu_s) / ((time_ns - before.time_ns) / 1e9)
        node.guests[key] = now
