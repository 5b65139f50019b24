"""Transfers of images between nodes: resumed at the interruption, complete or not at all, and of the named image."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import msgspec
import pytest
from support.agent.image_nodes import CONTENT, REF, Nodes, ref, two_nodes
from support.live import HANG_S

from node_agent.drivers.protocol import DriverError, ImageLostError
from node_agent.image_wire import LONGEST_LINE
from node_agent.images import ImageCopier, ImageFetcher, ImageStore
from testbed.bus.messages import BadRecordError, Command, FetchImage, ImageRef, decode, encode
from testbed.lab.secure.authority import Authority


def test_an_image_arrives_whole_and_a_second_fetch_moves_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with two_nodes(tmp_path) as nodes:
            assert await nodes.fetch() == {"bytes": len(CONTENT)}
            assert nodes.target.path(REF.image).read_bytes() == CONTENT
            assert await nodes.fetch() == {"bytes": 0}
            assert [path.name for path in nodes.target.folder.iterdir()] == [REF.image]

    asyncio.run(main())


def test_another_image_of_that_name_and_size_is_not_taken_for_the_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with two_nodes(tmp_path) as nodes:
            nodes.target.path(REF.image).write_bytes(b"x" * len(CONTENT))
            assert await nodes.fetch() == {"bytes": len(CONTENT)}
            assert nodes.target.path(REF.image).read_bytes() == CONTENT

    asyncio.run(main())


def test_what_a_rehearsed_node_copies_is_compared_too(tmp_path: Path) -> None:
    source, target = ImageStore(tmp_path / "a"), ImageStore(tmp_path / "b")
    source.path(REF.image).write_bytes(b"x" * len(CONTENT))
    copier = ImageCopier(target, lambda folder, image: ImageStore(folder).path(image))
    with pytest.raises(ImageLostError, match="digest"):
        asyncio.run(copier.fetch(REF, str(tmp_path / "a"), 0, ""))


def test_agents_with_certificates_exchange_images_among_themselves_only(tmp_path: Path) -> None:
    lab, stranger = Authority.create(tmp_path / "ca", "t"), Authority.create(tmp_path / "other", "t")
    a, b, elsewhere = (
        authority.issue("node", name, hosts=[host])[0].folder
        for authority, name, host in ((lab, "a", "127.0.0.1"), (lab, "b", "127.0.0.1"), (lab, "c", "192.0.2.1"))
    )
    other = stranger.issue("node", "a", hosts=["127.0.0.1"])[0].folder

    async def main() -> None:
        async with two_nodes(tmp_path, server_tls=a, fetcher_tls=b) as nodes:
            assert await nodes.fetch() == {"bytes": len(CONTENT)}
            assert nodes.target.path(REF.image).read_bytes() == CONTENT
            nodes.target.drop(REF.image)
        for server_tls, fetcher_tls in ((a, other), (other, b), (a, None), (None, b), (elsewhere, b)):
            async with two_nodes(tmp_path, server_tls=server_tls, fetcher_tls=fetcher_tls) as nodes:
                with pytest.raises(DriverError):
                    await nodes.fetch()
                assert not nodes.target.path(REF.image).exists()

    asyncio.run(main())


def test_a_transfer_that_broke_off_is_resumed(tmp_path: Path) -> None:
    async def main() -> None:
        async with two_nodes(tmp_path) as nodes:
            (nodes.target.folder / (REF.image + ".part")).write_bytes(CONTENT[:1_000_001])
            assert await nodes.fetch() == {"bytes": len(CONTENT) - 1_000_001}
            assert nodes.target.path(REF.image).read_bytes() == CONTENT

    asyncio.run(main())


def test_a_wrong_content_never_gets_the_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with two_nodes(tmp_path) as nodes:
            (nodes.target.folder / (REF.image + ".part")).write_bytes(b"x" * 1000)
            with pytest.raises(ImageLostError, match="digest"):
                await nodes.fetch()
            assert list(nodes.target.folder.iterdir()) == []

    asyncio.run(main())


@pytest.mark.parametrize(
    ("image", "words"),
    [(ImageRef(image="b-s1.img", bytes=5, digest="0"), r"b-s1\.img"),
     (ImageRef(image=REF.image, bytes=5, digest="0"), f"another size: {len(CONTENT)} bytes, expected 5")],
)  # fmt: skip
def test_an_image_that_is_missing_or_another_one_is_lost(tmp_path: Path, image: ImageRef, words: str) -> None:
    async def main() -> None:
        async with two_nodes(tmp_path) as nodes:
            with pytest.raises(ImageLostError, match=words) as refused:
                await nodes.fetch(image)
            assert refused.value.failure_code == "image-lost"
            assert list(nodes.target.folder.iterdir()) == []

    asyncio.run(main())


def test_nobody_there_is_one_clear_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with two_nodes(tmp_path) as nodes:
            pass
        with pytest.raises(DriverError, match=rf"a-s1\.img from 127\.0\.0\.1:{nodes.port}"):
            await nodes.fetch()

    asyncio.run(main())


@pytest.mark.parametrize("name", ["../x.img", "/etc/x.img", "a/b.img", "x", ".img", "A.img", "a..img", "a.img\n"])
def test_names_that_could_lead_out_of_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DriverError, match="image name"):
        ImageStore(tmp_path).path(name)


# --- a hostile source


def fetched_from(tmp_path: Path, answer: bytes, image: ImageRef = REF) -> str:
    """Fetch from a server that answers with these bytes; returns the error."""

    async def main() -> str:
        async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writer.write(answer)
            writer.close()

        server = await asyncio.start_server(play, "127.0.0.1", 0)
        async with server, asyncio.timeout(HANG_S):
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(DriverError) as refused:
                await ImageFetcher(ImageStore(tmp_path)).fetch(image, "127.0.0.1", port, "t")
            return str(refused.value)

    words = asyncio.run(main())
    assert "\n" not in words
    assert not (tmp_path / image.image).exists()
    return words


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "no answer of an agent"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no answer of an agent"),
        (b"\xff\xfe\n", "no answer of an agent"),
        (b"[" * 4000 + b"\n", "no answer of an agent"),
        (b"x" * (LONGEST_LINE + 1) + b"\n", f"expected {LONGEST_LINE} at most"),
        (b"x" * (8 << 20), "limit"),
        (b'{"bytes": 1e308}\n', "no answer of an agent"),
        (b'{"bytes": -1}\n', "it sends -1 bytes"),
        (b'{"bytes": 999999999999999}\n', "it sends 999999999999999 bytes"),
        (b'{"error": "a\\nTraceback (most recent call last)"}\n', "a\\\\nTraceback"),
        (b'{"bytes": %d}\nxyz' % len(CONTENT), f"broken off, {len(CONTENT) - 3} bytes missing"),
        (b'{"bytes": %d}\n' % len(CONTENT) + b"x" * len(CONTENT), "digest"),
    ],
)
def test_whatever_a_source_answers_is_one_line(tmp_path: Path, answer: bytes, words: str) -> None:
    assert re.search(words, fetched_from(tmp_path, answer))


@pytest.mark.parametrize("host", ["", "a" * 300, "a..b", "\0", "x\n", "999.1.1.1", "::::", "http://x/"])
def test_a_host_that_makes_no_sense_is_one_line(tmp_path: Path, host: str) -> None:
    async def main() -> None:
        with pytest.raises(DriverError, match=r"image a-s1\.img from ") as refused:
            await ImageFetcher(ImageStore(tmp_path)).fetch(REF, host, 9, "t")
        assert "\n" not in str(refused.value)

    asyncio.run(main())


@pytest.mark.parametrize(
    "change",
    [{"port": 10**40}, {"port": -1}, {"port": 65536}, {"host": "x" * 5000}, {"ticket": "x" * 200},
     *({"image": {"image": "a.img", "bytes": size, "digest": ""}} for size in (-1, 2**63))],
)  # fmt: skip
def test_an_order_that_makes_no_sense_is_a_bad_record(change: dict[str, object]) -> None:
    order = FetchImage(image=REF, host="h", port=1, ticket="t")
    plain = msgspec.json.decode(encode(Command(id="a", lease="b", reply_to="c", deadline_s=1, action=order)))
    plain["action"] |= change
    with pytest.raises(BadRecordError):
        decode(Command, msgspec.json.encode(plain) if "port" not in change else _with_port(plain, change["port"]))


def _with_port(plain: dict[str, object], port: object) -> bytes:
    """Numbers in JSON that the encoder would not write."""
    plain["action"]["port"] = 4242
    return msgspec.json.encode(plain).replace(b"4242", str(port).encode())


def test_an_image_of_another_content_is_fetched_by_its_own_name(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        other = ref("b-s2.img", b"y" * 10)
        nodes.source.path(other.image).write_bytes(b"y" * 10)
        assert await nodes.fetch(other) == {"bytes": 10}

    async def both() -> None:
        async with two_nodes(tmp_path) as nodes:
            await main(nodes)

    asyncio.run(both())
