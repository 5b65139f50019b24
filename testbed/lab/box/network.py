"""The network of a lab: one bridge per node, in a network namespace of its own, connected by a fabric bridge.

Outside, only the named namespaces are visible: interfaces are created inside their namespaces.
"""

from __future__ import annotations

import ipaddress
import json
from dataclasses import dataclass
from typing import Any

from testbed.lab.box.commands import CommandError, run
from testbed.lab.box.spec import BoxSpec, NodeSpec

BRIDGE = "dfrs0"
_UPLINK = "up0"
_LATENCY = "50ms"
_LEAST_BURST_BYTES = 128 << 10  # a segment of 64 KiB must fit
_BURST_S = 0.004


def namespaces() -> list[str]:
    """Return the names of all network namespaces of the machine."""
    return [line.split()[0] for line in run("ip", "netns", "list").splitlines() if line.strip()]


def remove_namespace(name: str) -> list[str]:
    """Remove a network namespace with all its interfaces, if it exists."""
    if name not in namespaces():
        return []
    run("ip", "netns", "delete", name)
    return [f"network {name}"]


def _show(namespace: str) -> dict[str, dict[str, Any]]:
    links = json.loads(run("ip", "-n", namespace, "-json", "address", "show") or "[]")
    return {link["ifname"]: link for link in links if "ifname" in link}


def _is_up(links: dict[str, dict[str, Any]], name: str) -> bool:
    return "UP" in links.get(name, {}).get("flags", [])


def hardware_address(node: NodeSpec, *, inside: bool = False) -> str:
    """Return a fixed hardware address for a node's bridge; with `inside` for the bridge in a nested node.

    The kernel's default is the lowest address of the bridge's ports, which changes with guests and when a node is
    re-created. The other nodes would then send to the old address for a minute.
    """
    first = 0x06 if inside else 0x02
    return ":".join(f"{byte:02x}" for byte in (first, 0xDF, *ipaddress.IPv4Address(node.host).packed))


def is_port(namespace: str, name: str) -> bool:
    """Whether an interface is up and a port of a namespace's bridge; raises `CommandError` without the namespace."""
    links = _show(namespace)
    return _is_up(links, name) and links[name].get("master") == BRIDGE


def _make_bridge(namespace: str, *settings: str) -> None:
    # An incomplete namespace is re-created: its interfaces are removed with it, and so are their peers.
    remove_namespace(namespace)
    run("ip", "netns", "add", namespace)
    run("ip", "-n", namespace, "link", "set", "lo", "up")
    run("ip", "-n", namespace, "link", "add", BRIDGE, *settings, "type", "bridge")
    run("ip", "-n", namespace, "link", "set", BRIDGE, "up")


@dataclass(frozen=True, slots=True)
class Fabric:
    """The namespace with the bridge that connects the nodes."""

    spec: BoxSpec

    @property
    def name(self) -> str:
        """See `Part.name`."""
        return f"network {self.spec.fabric}"

    def there(self) -> bool:
        """See `Part.there`."""
        return self.spec.fabric in namespaces() and _is_up(_show(self.spec.fabric), BRIDGE)

    def make(self) -> None:
        """See `Part.make`."""
        _make_bridge(self.spec.fabric)

    def remove(self) -> list[str]:
        """See `Part.remove`."""
        return remove_namespace(self.spec.fabric)


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """The namespace of a node: a bridge with the node's address, and a link to the fabric."""

    spec: BoxSpec
    node: NodeSpec

    @property
    def name(self) -> str:
        """See `Part.name`."""
        return f"network {self.node.full_name}"

    @property
    def _port(self) -> str:
        return f"n{self.spec.nodes.index(self.node) + 1}"

    @property
    def _ends(self) -> tuple[tuple[str, str], tuple[str, str]]:
        return (self.node.full_name, _UPLINK), (self.spec.fabric, self._port)

    def there(self) -> bool:
        """See `Part.there`."""
        if self.node.full_name not in namespaces():
            return False
        links = _show(self.node.full_name)
        addresses = [f"{a['local']}/{a['prefixlen']}" for a in links.get(BRIDGE, {}).get("addr_info", [])]
        return (
            (self.node.is_nested or self.node.address in addresses)
            and all(_is_up(_show(namespace), link) for namespace, link in self._ends)
            and all(self._is_limited(namespace, link) for namespace, link in self._ends)
        )

    def make(self) -> None:
        """See `Part.make`."""
        own, fabric = self.node.full_name, self.spec.fabric
        if _is_whole_namespace(own):
            self._drop_link()
            run("ip", "-n", own, "address", "flush", "dev", BRIDGE)
        else:
            _make_bridge(own, "address", hardware_address(self.node))
            self._drop_link()  # the link of an earlier namespace that a process keeps alive
        if not self.node.is_nested:  # a nested node is a virtual machine, which configures its address itself
            run("ip", "-n", own, "address", "add", self.node.address, "dev", BRIDGE)
        run(
            *("ip", "link", "add", _UPLINK, "netns", own, "type", "veth"),
            *("peer", "name", self._port, "netns", fabric),
        )
        for namespace, link in self._ends:
            run("ip", "-n", namespace, "link", "set", link, "master", BRIDGE, "up")
            self._limit(namespace, link)

    def remove(self) -> list[str]:
        """See `Part.remove`."""
        return remove_namespace(self.node.full_name)

    def _drop_link(self) -> None:
        for namespace, link in self._ends:
            if link in _show(namespace):
                run("ip", "-n", namespace, "link", "delete", link)  # also deletes the other end

    def _limit(self, namespace: str, link: str) -> None:
        if self.spec.link_mbit_per_s is None:
            return
        bits_per_s = round(self.spec.link_mbit_per_s * 1e6)
        burst_bytes = max(_LEAST_BURST_BYTES, round(bits_per_s / 8 * _BURST_S))
        run(
            *("tc", "-n", namespace, "qdisc", "replace", "dev", link, "root", "tbf"),
            *("rate", f"{bits_per_s}bit", "burst", str(burst_bytes), "latency", _LATENCY),
        )

    def _is_limited(self, namespace: str, link: str) -> bool:
        if self.spec.link_mbit_per_s is None:
            return True
        disciplines = json.loads(run("tc", "-n", namespace, "-json", "qdisc", "show", "dev", link) or "[]")
        return any(discipline.get("kind") == "tbf" for discipline in disciplines)


def _is_whole_namespace(name: str) -> bool:
    """Whether a node's namespace works and can be kept; processes would stay in the old one if it were replaced."""
    try:
        return name in namespaces() and _is_up(_show(name), BRIDGE)
    except CommandError:  # a name whose namespace was never mounted, as the command that created it was killed
        return False
