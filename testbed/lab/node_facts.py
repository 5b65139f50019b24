"""Validates the facts that a node reports, before its sizes and addresses are used."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from testbed.bus.limits import (
    CORES_EXPECTED,
    LEAST_NODE_CORES,
    MEMORY_EXPECTED,
    MOST_DISK_MIB,
    MOST_NODE_CORES,
    MOST_NODE_MEMORY_MIB,
)
from testbed.bus.messages import NodeFacts
from testbed.errors import RunError, UserError, shown
from testbed.scenario.schema import NodeTable

_CPUS_TOLERANCE = 1e-5  # relative: agents are started with six digits
_MOST_WORDS = 256
_MOST_BOOT_S = 3600.0
_SHOWN_CHARS = 80
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:+-]{0,126}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


def check_facts(node: str, facts: NodeFacts, wanted: NodeTable | None = None) -> None:
    """Raise `UserError` with node, key and value unless the facts are within bounds and match the scenario.

    `wanted` is the node's table in the scenario, None without one. Cores and memory must match the scenario for nodes
    that the scenario starts, and for other nodes if the scenario sets them.
    """

    def check(name: str, good: bool, expected: str) -> None:
        if not good:
            raise UserError(
                f"node {node}: its agent says {name} = {shown(getattr(facts, name), _SHOWN_CHARS)}: expected {expected}"
            )

    check("cpus", LEAST_NODE_CORES <= facts.cpus <= MOST_NODE_CORES, CORES_EXPECTED)
    check("memory_mib", 1 <= facts.memory_mib <= MOST_NODE_MEMORY_MIB, MEMORY_EXPECTED)
    if wanted is not None and (wanted.spawn or "cpus" in wanted.model_fields_set):
        same = math.isclose(facts.cpus, wanted.cpus, rel_tol=_CPUS_TOLERANCE)
        check("cpus", same, f"{wanted.cpus:g}, as the scenario says")
    if wanted is not None and (wanted.spawn or "memory_mib" in wanted.model_fields_set):
        check("memory_mib", facts.memory_mib == wanted.memory_mib, f"{wanted.memory_mib}, as the scenario says")
    check("machine_cores", 1 <= facts.machine_cores <= MOST_NODE_CORES, f"1 to {MOST_NODE_CORES}")
    check("machine_memory_mib", 1 <= facts.machine_memory_mib <= MOST_NODE_MEMORY_MIB, MEMORY_EXPECTED)
    most_mib = facts.machine_memory_mib
    check("guest_floor_mib", 0 <= facts.guest_floor_mib <= most_mib, f"0 to {most_mib}, its machine_memory_mib")
    check("image_free_mib", 0 <= facts.image_free_mib <= MOST_DISK_MIB, f"0 to {MOST_DISK_MIB} MiB")
    check("image_port", 0 <= facts.image_port <= 65535, "a port from 0 to 65535")
    boot_s = facts.guest_boot_s
    check("guest_boot_s", boot_s is None or 0 <= boot_s <= _MOST_BOOT_S, f"0 to {_MOST_BOOT_S:g} s")
    check("address", _is_address(facts.address), "a host name or IP address")
    check("versions", len(facts.versions) <= _MOST_WORDS, f"at most {_MOST_WORDS} of them")
    for name in ("capabilities", "programs", "image_stores"):
        words = getattr(facts, name)
        check(name, len(words) <= _MOST_WORDS and all(map(_WORD.fullmatch, words)), f"at most {_MOST_WORDS} names")


def check_alike(facts: Mapping[str, NodeFacts]) -> None:
    """Raise `UserError` with the first two nodes whose cores or memory differ; `facts` are by name.

    The needs of a trace are fractions of a node, so all nodes must have the same size.
    """
    (first, one), *others = facts.items()
    for other, found in others:
        cores_differ = not math.isclose(one.cpus, found.cpus, rel_tol=_CPUS_TOLERANCE)
        if cores_differ or one.memory_mib != found.memory_mib:
            raise UserError(
                f"node {first} has cpus = {one.cpus:g} and memory_mib = {one.memory_mib}, node {other} has cpus = "
                f"{found.cpus:g} and memory_mib = {found.memory_mib}: expected the same on every node of a lab"
            )


def check_fetch(source: str, address: str, target: str, target_address: str) -> None:
    """Raise `RunError` if the address that `source` reports would denote the fetching node `target` itself.

    Nodes on the same machine may use its loopback interface; a node on another machine would connect to its own
    services.
    """
    kind = _reach(address)
    if kind and kind != _reach(target_address):
        raise RunError(
            f"node {source}: its agent says address = {shown(address, _SHOWN_CHARS)}, a {kind} address: expected one "
            f"at which node {target} at {shown(target_address, _SHOWN_CHARS)} reaches it"
        )


def _reach(text: str) -> str:
    """Return the kind of an address whose meaning depends on the machine, else an empty string."""
    if text.lower().rstrip(".").rpartition(".")[2] == "localhost":
        return "loopback"
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return ""
    found = getattr(found, "ipv4_mapped", None) or found
    return "loopback" if found.is_loopback else "link-local" if found.is_link_local else ""


def _is_address(text: str) -> bool:
    """Whether images can be fetched from this host or address; agents of a dry run report a folder.

    Names that end with a number are refused, as they are other forms of an IP address, such as 127.1 and 0x7f000001.
    """
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        last = text.rpartition(".")[2].lower()
        named = bool(_HOST.fullmatch(text)) and not re.fullmatch("[0-9]+|0x[0-9a-f]*", last)
        return named or PurePosixPath(text).is_absolute()
    found = getattr(found, "ipv4_mapped", None) or found
    return not (found.is_multicast or found.is_unspecified or str(found) == "255.255.255.255")
