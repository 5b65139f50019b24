"""Messages counted at a network card: the filter in the kernel, and connections between two network namespaces."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.live import wait_until

from node_agent.drivers.protocol import DriverError
from node_agent.drivers.virt import tap
from node_agent.drivers.virt.domain import tap_of
from node_agent.drivers.virt.tap import Tap, content_bytes
from node_agent.drivers.virt.traffic import ranks_at

SERVER = """
import socket
server = socket.create_server(("10.77.9.2", 5))
print("there", flush=True)
one, _ = server.accept()
got = 0
while got < 100_000:
    got += len(one.recv(65536))
one.sendall(b"y" * 7)
print("got", flush=True)
one.recv(1)
"""
CLIENT = """
import socket
one = socket.create_connection(("10.77.9.2", 5))
for _ in range(100):
    one.sendall(b"x" * 1000)
print(len(one.recv(7, socket.MSG_WAITALL)), flush=True)
"""


def frame(ip_words: int, tcp_words: int, content: int, kind: int = 0x0800, protocol: int = 6) -> bytes:
    ethernet = bytes(12) + struct.pack("!H", kind)
    total = 4 * (ip_words + tcp_words) + content
    ip = struct.pack("!BBHHHBBH", 0x40 | ip_words, 0, total, 0, 0, 64, protocol, 0) + bytes(8 + 4 * (ip_words - 5))
    return ethernet + ip + bytes(12) + bytes([tcp_words << 4]) + bytes(7 + 4 * (tcp_words - 5)) + bytes(content)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection with the filter at its end, which treats all data that a socket receives as a frame."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        theirs.setblocking(False)
        tap._filter(theirs)
        yield ours, theirs


def passes(pair: tuple[socket.socket, socket.socket], data: bytes) -> bytes:
    """Return the frames that pass the filter."""
    pair[0].send(data)
    try:
        return pair[1].recv(65536)
    except BlockingIOError:
        return b""


HEADS = st.tuples(st.integers(5, 8), st.integers(5, 8), st.integers(0, 1400))


def test_the_filter_passes_what_has_content_alone(pair: tuple[socket.socket, socket.socket]) -> None:
    @given(HEADS, st.sampled_from([0x0800, 0x0806, 0x86DD]), st.sampled_from([6, 17, 1]))
    def check(head: tuple[int, int, int], kind: int, protocol: int) -> None:
        data = frame(*head, kind, protocol)
        is_message = kind == 0x0800 and protocol == 6 and head[2] > 0
        assert content_bytes(data) == (head[2] if is_message else 0)
        found = passes(pair, data)
        assert found == (data[:64] if is_message else b"")
        assert content_bytes(found) == content_bytes(data), "the first bytes are enough"

    check()


def test_nonsense_is_counted_for_nothing_or_what_it_says(pair: tuple[socket.socket, socket.socket]) -> None:
    @given(st.binary(min_size=1, max_size=120))
    def check(data: bytes) -> None:
        found = passes(pair, data)
        assert 0 <= content_bytes(found) <= 65535
        assert content_bytes(found) == content_bytes(data[:64])

    check()


def test_a_rank_is_known_by_the_hardware_address_of_its_guest() -> None:
    assert ranks_at(["10.77.1.5/16", "10.77.1.6"], 2) == {
        b"\x52\x54\x0a\x4d\x01\x05": 0,
        b"\x52\x54\x0a\x4d\x01\x06": 1,
    }
    with pytest.raises(DriverError, match="1 addresses: expected one for each of 2 ranks"):
        ranks_at(["10.77.1.5"], 2)
    with pytest.raises(DriverError, match=r"addresses of ranks: .*'x'.*: expected such as 10\.77\.1\.5/16"):
        ranks_at(["10.77.1.5", "x"], 2)


def test_a_domain_without_a_card_has_no_tap() -> None:
    assert tap_of("<domain><devices><interface><target dev='vnet3'/></interface></devices></domain>") == "vnet3"
    for devices in ("", "<interface/>", "<interface><target/></interface>"):
        with pytest.raises(DriverError, match="no card"):
            tap_of(f"<domain><devices>{devices}</devices></domain>")


@pytest.fixture
def ends() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a card each, left at 10.77.9.1 and right at 10.77.9.2."""
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("this user cannot make network namespaces")
    names = (f"dfrs-t{os.getpid():x}l", f"dfrs-t{os.getpid():x}r")
    try:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True)
        link = [
            "ip",
            "link",
            "add",
            "left",
            "netns",
            names[0],
            "type",
            "veth",
            "peer",
            "name",
            "right",
            "netns",
            names[1],
        ]
        subprocess.run(link, check=True)
        for number, (name, card) in enumerate(zip(names, ("left", "right"), strict=True), 1):
            for words in (["address", "add", f"10.77.9.{number}/24", "dev", card], ["link", "set", card, "up"]):
                subprocess.run(["ip", "-n", name, *words], check=True)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def inside(name: str, code: str) -> subprocess.Popen[str]:
    command = ["ip", "netns", "exec", name, sys.executable, "-c", code]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def address(name: str, card: str) -> bytes:
    shown = subprocess.run(["ip", "-n", name, "-o", "link", "show", card], capture_output=True, text=True, check=True)
    return bytes.fromhex(shown.stdout.partition("link/ether ")[2].split()[0].replace(":", ""))


def test_bytes_of_messages_are_counted_by_their_sender(ends: tuple[str, str]) -> None:
    """Frames that leave the left card go from the rank on the left to the guest on the right."""
    left, right = ends
    server = inside(right, SERVER)
    client = None
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == "there\n"
        ranks = {address(left, "left"): 2, address(right, "right"): 0}
        watcher = inside(left, "import time; print('there', flush=True); time.sleep(1e6)")
        try:
            assert watcher.stdout is not None
            assert watcher.stdout.readline() == "there\n"
            counted = Tap("left", watcher.pid, ranks)
        finally:
            watcher.kill()
            watcher.communicate()
        client = inside(left, CLIENT)
        assert server.stdout.readline() == "got\n"
        assert client.stdout is not None
        assert client.stdout.readline() == "7\n"
        found = [0, 0, 0]

        def all_came() -> bool:
            for rank, count in enumerate(counted.received()):
                found[rank] += count
            return found[2] >= 100_000

        wait_until(all_came, "all bytes of messages")
        assert found == [0, 0, 100_000], "the answer did not go to the guest, and acknowledgements do not count"
        subprocess.run(["ip", "-n", left, "link", "delete", "left"], check=True)

        def gone() -> bool:
            try:
                counted.received()
            except OSError as error:
                return error.errno in (errno.ENETDOWN, errno.ENODEV, errno.ENXIO)
            return False

        wait_until(gone, "the end of the card")
        counted.close()
    finally:
        for process in (server, client):
            if process is not None:
                process.kill()
                process.communicate()


def test_without_the_right_to_see_frames_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_arguments: object) -> socket.socket:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(socket, "socket", refused)
    assert tap.why_unseen() == "frames of its guests cannot be seen: packet socket: Operation not permitted"
