"""How fast one machine sends to another: a listener there, a sender here, each started over ssh.

    python -m testbed.lab.doctor.wire receive ADDRESS PORT   prints what came: {"bytes", "seconds"}
    python -m testbed.lab.doctor.wire send ADDRESS PORT MIB
    python -m testbed.lab.doctor.wire mtu ADDRESS

Both read a token from standard input. The listener takes one connection, within 20 s, that begins with it.
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
    """Listen, and time the data from the first byte after the token on."""
    with socket.create_server((address, port)) as server:
        server.settimeout(_PATIENCE_S)
        connection, _ = server.accept()
    with connection:
        connection.settimeout(_PATIENCE_S)
        given = connection.recv(_TOKEN_BYTES, socket.MSG_WAITALL).decode("ascii", "replace")
        if not hmac.compare_digest(given, token):
            raise SystemExit("a stranger connected")
        begin_s, count = time.monotonic(), 0
        while part := connection.recv(_CHUNK):
            count += len(part)
        print(json.dumps({"bytes": count, "seconds": time.monotonic() - begin_s}))  # noqa: T201  # for who started it


def send(address: str, port: int, mib: int, token: str) -> None:
    """Send `mib` MiB as soon as the listener accepts."""
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
            time.sleep(_AGAIN_S)  # the listener is on another machine, so there is no event of its start


def mtu_of(address: str) -> int | None:
    """Return the MTU of the interface that has this address or name, None if none has it."""
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
    """Whether an interface's address is the wanted one; a loopback interface has its whole network."""
    if address == wanted:
        return True
    try:
        network = ip_network(f"{address}/{netmask}", strict=False)
        return network.is_loopback and ip_address(wanted) in network
    except ValueError:  # of a card, or with a zone
        return False


def main(words: list[str]) -> None:
    """Run the command line."""
    match words:
        case ["receive", address, port]:
            receive(address, int(port), sys.stdin.readline().strip())
        case ["send", address, port, mib]:
            send(address, int(port), int(mib), sys.stdin.readline().strip())
        case ["mtu", address]:
            print(mtu_of(address) or 0)  # noqa: T201  # for who started it
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
