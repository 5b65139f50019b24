"""Measures the transfer rate from one machine to another, by a sender and a receiver that are started over ssh.

    python -m testbed.lab.doctor.wire receive ADDRESS PORT   prints the received amount: {"bytes", "seconds"}
    python -m testbed.lab.doctor.wire send ADDRESS PORT MIB
    python -m testbed.lab.doctor.wire mtu ADDRESS

Sender and receiver read a token from standard input. The receiver accepts one connection within 20 s, which must begin
with the token.
"""

from __future__ import annotations

import hmac
import json
import socket
import sys
import time
from ipaddress import ip_address, ip_network

_PATIENCE_S = 20.0
_AGAIN_S = 0.05
_CHUNK = 1 << 20
_TOKEN_BYTES = 32


def receive(address: str, port: int, token: str) -> None:
    """Accept one connection, and time the received data from the first byte after the token."""
    with socket.create_server((address, port)) as server:
        server.settimeout(_PATIENCE_S)
        connection, _ = server.accept()
    with connection:
        connection.settimeout(_PATIENCE_S)
        given = connection.recv(_TOKEN_BYTES, socket.MSG_WAITALL).decode("ascii", "replace")
        if not hmac.compare_digest(given, token):
            raise SystemExit("the peer does not have the token")
        begin_s, count = time.monotonic(), 0
        while part := connection.recv(_CHUNK):
            count += len(part)
        print(json.dumps({"bytes": count, "seconds": time.monotonic() - begin_s}))  # noqa: T201  # read over ssh


def send(address: str, port: int, mib: int, token: str) -> None:
    """Send `mib` MiB as soon as the receiver listens."""
    block = bytes(_CHUNK)
    with _connect(address, port) as connection:
        connection.sendall(token.encode("ascii"))
        for _ in range(mib):
            connection.sendall(block)


def _connect(address: str, port: int) -> socket.socket:
    ends_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return socket.create_connection((address, port), _PATIENCE_S)
        except ConnectionRefusedError:
            if time.monotonic() > ends_s:
                raise
            time.sleep(_AGAIN_S)  # polled, as the receiver on the other machine cannot notify this process


def mtu_of(address: str) -> int | None:
    """Return the MTU of the interface with this address or host name, None if there is none."""
    import psutil  # noqa: PLC0415  # only for this

    try:
        wanted = {str(each[4][0]) for each in socket.getaddrinfo(address, None)}
    except OSError:
        return None
    stats = psutil.net_if_stats()
    for name, held in psutil.net_if_addrs().items():
        if name in stats and any(_has(each.address, each.netmask, one) for each in held for one in wanted):
            return int(stats[name].mtu)
    return None


def _has(address: str, netmask: str | None, wanted: str) -> bool:
    """Whether an interface has the wanted address; a loopback interface has all addresses of its network."""
    if address == wanted:
        return True
    try:
        network = ip_network(f"{address}/{netmask}", strict=False)
        return network.is_loopback and ip_address(wanted) in network
    except ValueError:  # a hardware address, or an address with a zone
        return False


def main(words: list[str]) -> None:
    """Run the command line."""
    match words:
        case ["receive", address, port]:
            receive(address, int(port), sys.stdin.readline().strip())
        case ["send", address, port, mib]:
            send(address, int(port), int(mib), sys.stdin.readline().strip())
        case ["mtu", address]:
            print(mtu_of(address) or 0)  # noqa: T201  # read over ssh
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
