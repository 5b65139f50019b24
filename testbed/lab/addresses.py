"""Allocates IPv4 addresses for guests on the guests' network."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

RESERVED = 256


def guest_addresses(network: str) -> Iterator[str]:
    """Yield addresses with prefix length (`10.77.1.0/16`), one per guest, without end.

    The first and the last 256 of the network, and all x.x.255.x, are reserved for nodes and services. After the last
    address the first one follows again: a /16 suffices for 65,024 guests, of which the first have ended long before.
    """
    whole = ipaddress.IPv4Network(network)
    while True:
        for number in range(RESERVED, whole.num_addresses - RESERVED):
            address = whole[number]
            if address.packed[2] != 255:
                yield f"{address}/{whole.prefixlen}"
