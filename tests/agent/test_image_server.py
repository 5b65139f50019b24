"""Access to images of a node: the holder of a ticket gets that image, once. Others get nothing and block nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.agent.image_nodes import CONTENT, REF, Nodes, ref, two_nodes
from support.live import HANG_S, until

from node_agent import image_server as server_module
from node_agent.drivers.protocol import DriverError
from node_agent.few_lines import EVERY_S, MOST_LINES, FewLines
from node_agent.image_server import ImageServer
from node_agent.image_tickets import MOST_OFFERS, Tickets
from node_agent.image_wire import LONGEST_LINE
from testbed.bus.lease import token_digest
from testbed.bus.messages import OfferImage
from testbed.bus.suspicious_acts import SOMEBODY, ActKind
from testbed.bus.tls import client_context
from testbed.errors import UserError
from testbed.lab.secure.authority import Authority


def on(tmp_path: Path, play, **tls: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(HANG_S), two_nodes(tmp_path, **tls) as nodes:
            await play(nodes)

    asyncio.run(main())


def request(ticket: str, **changes: object) -> bytes:
    record = {"ticket": ticket, "image": REF.image, "bytes": REF.bytes, "digest": REF.digest, "offset": 0, **changes}
    return json.dumps(record).encode() + b"\n"


# --- tickets


def test_a_ticket_opens_one_image_once(tmp_path: Path) -> None:
    async def play(nodes: Nodes) -> None:
        ticket = nodes.offer()
        assert await nodes.fetch(ticket=ticket) == {"bytes": len(CONTENT)}
        nodes.target.drop(REF.image)
        with pytest.raises(DriverError, match=r"the ticket for a-s1\.img was used"):
            await nodes.fetch(ticket=ticket)
        assert list(nodes.target.folder.iterdir()) == []

    on(tmp_path, play)


def test_no_other_words_open_any(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def play(nodes: Nodes) -> None:
        ticket = nodes.offer()
        for guess in ("", "t", token_digest(ticket), secrets.token_hex(16)):
            with pytest.raises(DriverError, match="no such ticket is out"):
                await nodes.fetch(ticket=guess)
        assert await nodes.fetch(ticket=ticket) == {"bytes": len(CONTENT)}

    on(tmp_path, play)
    lines = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert lines == ["image server: 127.0.0.1 refused: no such ticket is out"] * 4


@pytest.mark.parametrize(
    "changes",
    [
        {"image": "b-s1.img"},
        {"image": "../b/secret.img"},
        {"digest": "0" * 32},
        {"bytes": 5},
        {"bytes": len(CONTENT) + 1},
    ],
)
def test_a_ticket_opens_no_other_image_and_is_spent(tmp_path: Path, changes: dict[str, object]) -> None:
    async def play(nodes: Nodes) -> None:
        nodes.source.path("b-s1.img").write_bytes(b"somebody else's")
        ticket = nodes.offer()
        answer = await nodes.say(request(ticket, **changes))
        assert b"somebody" not in answer
        assert json.loads(answer)["error"] == f"the ticket is for {REF.image} and no other image"
        with pytest.raises(DriverError, match="was used"):
            await nodes.fetch(ticket=ticket)

    on(tmp_path, play)


def test_a_ticket_expires_and_all_are_taken_back(tmp_path: Path) -> None:
    async def play(nodes: Nodes) -> None:
        late, taken_back = nodes.offer(for_s=30.0), nodes.offer(for_s=1e9)
        nodes.now_s[0] = 30.0
        with pytest.raises(DriverError, match=r"the ticket for a-s1\.img has expired"):
            await nodes.fetch(ticket=late)
        assert nodes.acts.counts == {}, "an honest node may have waited too long"
        nodes.tickets.clear()
        with pytest.raises(DriverError, match="no such ticket"):
            await nodes.fetch(ticket=taken_back)
        assert nodes.acts.counts == {(SOMEBODY, ActKind.REFUSED_IMAGE): 1}

    on(tmp_path, play)


def test_a_ticket_is_good_for_the_node_that_it_was_made_for(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca", "t")
    a, b, c = (authority.issue("node", name, hosts=["127.0.0.1"])[0].folder for name in "abc")

    async def play(nodes: Nodes) -> None:
        ticket = nodes.offer(to="b")
        thief = client_context(c, "peers.pem")
        reader, writer = await asyncio.open_connection("127.0.0.1", nodes.port, ssl=thief)
        writer.write(request(ticket))
        assert json.loads(await reader.read())["error"] == "the ticket for a-s1.img is node b's"
        writer.close()
        assert await nodes.fetch(ticket=ticket) == {"bytes": len(CONTENT)}  # the thief has not used it up

    on(tmp_path, play, server_tls=a, fetcher_tls=b)


def test_tickets_do_not_pile_up() -> None:
    now_s = [0.0]
    tickets = Tickets(lambda: now_s[0])

    def offer(number: int) -> None:
        tickets.offer(OfferImage(image=REF, ticket_digest=f"{number:064x}", to="b", for_s=10.0))

    for number in range(MOST_OFFERS):
        offer(number)
    with pytest.raises(DriverError, match=f"{MOST_OFFERS} tickets are out already"):
        offer(MOST_OFFERS)
    now_s[0] = 1000.0
    offer(MOST_OFFERS)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.binary(max_size=200) | st.sampled_from([b"[" * 3000, b'{"ticket":1}', b"{}", b"null", b"\xff" * 9]),
        max_size=4,
    )
)
def test_no_line_is_an_exception(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    async def main() -> None:
        unhandled: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unhandled.append(context))
        async with asyncio.timeout(HANG_S), two_nodes(tmp_path_factory.mktemp("n")) as nodes:
            for line in lines:
                answer = await nodes.say(line.replace(b"\n", b"") + b"\n")
                assert b"error" in answer
            assert await nodes.fetch() == {"bytes": len(CONTENT)}
        assert unhandled == []

    asyncio.run(main())


@pytest.mark.parametrize("offset", [-1, len(CONTENT) + 1, 2**70, 1.5, "x", None])
def test_an_offset_is_within_the_image(tmp_path: Path, offset: object) -> None:
    async def play(nodes: Nodes) -> None:
        answer = await nodes.say(request(nodes.offer(), offset=offset))
        assert json.loads(answer)["error"]

    on(tmp_path, play)


# --- limits


def test_a_line_without_end_is_one_clear_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def play(nodes: Nodes) -> None:
        unhandled: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unhandled.append(context))
        answer = await nodes.say(b"x" * 300_000)
        assert not answer or json.loads(answer)["error"] == f"its line has more than {LONGEST_LINE} bytes"
        assert unhandled == []

    on(tmp_path, play)
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line == f"image server: 127.0.0.1 refused: its line has more than {LONGEST_LINE} bytes"


def test_who_never_reads_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "PATIENCE_S", 0.2)
    huge = 64 << 20  # more than buffers hold

    async def play(nodes: Nodes) -> None:
        with nodes.source.path("huge.img").open("wb") as file:
            file.truncate(huge)
        image = ref("huge.img", b"")
        image = type(image)(image="huge.img", bytes=huge, digest="0")
        silent = []
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", nodes.port, limit=1024)
            writer.transport.pause_reading()
            ticket = nodes.offer(image)
            writer.write(request(ticket, image="huge.img", bytes=huge, digest="0"))
            silent.append((reader, writer))
        await until(lambda: any("did not read" in record.getMessage() for record in caplog.records), "the first cut")
        await until(lambda: not nodes.server._talks, "all are gone")
        for _, writer in silent:
            writer.transport.abort()

    on(tmp_path, play)


def test_who_says_nothing_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "PATIENCE_S", 0.2)

    async def play(nodes: Nodes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", nodes.port)
        assert await reader.read() in (b"", b'{"bytes":0,"error":"","code":""}\n')
        writer.close()
        await until(lambda: not nodes.server._talks, "the end of the connection")

    on(tmp_path, play)


def test_a_handshake_has_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "PATIENCE_S", 0.2)
    authority = Authority.create(tmp_path / "ca", "t")
    a, b = (authority.issue("node", name, hosts=["127.0.0.1"])[0].folder for name in "ab")

    async def play(nodes: Nodes) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", nodes.port) for _ in range(20)]
        for reader, _ in silent:
            assert await _rest(reader) == b""
        for _, writer in silent:
            writer.close()
        await until(lambda: not nodes.server._talks, "all are gone")
        monkeypatch.setattr(server_module, "PATIENCE_S", HANG_S)
        assert await nodes.fetch() == {"bytes": len(CONTENT)}

    on(tmp_path, play, server_tls=a, fetcher_tls=b)


async def _rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


@pytest.mark.parametrize(
    ("limit", "words"),
    [("MOST_CONNECTIONS", "3 connections are open"), ("MOST_OF_ONE_ADDRESS", "3 connections from there are open")],
)
def test_connections_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, limit: str, words: str
) -> None:
    monkeypatch.setattr(server_module, limit, 3)

    async def play(nodes: Nodes) -> None:
        held = [await asyncio.open_connection("127.0.0.1", nodes.port) for _ in range(3)]
        await until(lambda: len(nodes.server._talks) == 3, "three connections")
        reader, writer = await asyncio.open_connection("127.0.0.1", nodes.port)
        assert await _rest(reader) == b""
        for _, other in [*held, (reader, writer)]:
            other.close()
        await until(lambda: not nodes.server._talks, "room")
        assert await nodes.fetch() == {"bytes": len(CONTENT)}

    on(tmp_path, play)
    assert any(words in record.getMessage() for record in caplog.records)


def test_who_hangs_up_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    async def play(nodes: Nodes) -> None:
        huge = 64 << 20
        with nodes.source.path("huge.img").open("wb") as file:
            file.truncate(huge)
        image = type(REF)(image="huge.img", bytes=huge, digest="0")
        with socket.create_connection(("127.0.0.1", nodes.port)) as connection:
            await asyncio.get_running_loop().run_in_executor(
                None, connection.sendall, request(nodes.offer(image), image="huge.img", bytes=huge, digest="0")
            )
            await until(lambda: len(nodes.server._talks) == 1, "a transfer that sends")
        await until(lambda: not nodes.server._talks, "the end of the connection")

    on(tmp_path, play)


def test_an_address_of_another_machine_is_one_line(tmp_path: Path) -> None:
    async def main() -> None:
        for host in ("203.0.113.7", "no.such.host.invalid"):
            server = ImageServer(lambda name: tmp_path / name, Tickets(lambda: 0.0))
            with pytest.raises(UserError, match=rf"--address {re.escape(host)}: .*expected an address of this machine"):
                await server.open(host)
            await server.close()

    asyncio.run(main())


def test_lines_that_a_stranger_causes_are_few() -> None:
    now_s, lines = [0.0], []
    say = FewLines(lines.append, lambda: now_s[0])
    for number in range(100):
        say(str(number))
    assert lines == [str(number) for number in range(MOST_LINES)]
    now_s[0] = EVERY_S
    say("later")
    assert lines[MOST_LINES:] == [f"{100 - MOST_LINES} more such lines were left out", "later"]
