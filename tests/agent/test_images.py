"""Images between nodes: only for the holder of the lease, resumed where it broke off, whole or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from node_agent.drivers.protocol import DriverError, ImageLostError
from node_agent.images import ImageFetcher, ImageServer, ImageStore
from node_agent.programs.image import new_digest
from testbed.bus.messages import ImageRef
from testbed.bus.tls import client_context, server_context
from testbed.secure.authority import Authority

CONTENT = bytes(range(256)) * 9000


def _digest(content: bytes) -> str:
    digest = new_digest()
    digest.update(content)
    return digest.hexdigest()


REF = ImageRef(image="a-s1.img", bytes=len(CONTENT), digest=_digest(CONTENT))


@asynccontextmanager
async def two_stores(
    tmp_path: Path, lease: str = "t", server_tls: Path | None = None, fetcher_tls: Path | None = None
) -> AsyncIterator[tuple[ImageStore, ImageStore, ImageFetcher, int]]:
    source, target = ImageStore(tmp_path / "a"), ImageStore(tmp_path / "b")
    (tmp_path / "a" / REF.image).write_bytes(CONTENT)
    server = ImageServer(source.path, lambda given: given == "t", server_tls and server_context(server_tls))
    await server.open("127.0.0.1")
    tls = fetcher_tls and client_context(fetcher_tls, "peers.pem")
    try:
        yield source, target, ImageFetcher(target, lambda: lease, tls), server.port
    finally:
        await server.close()


def test_an_image_arrives_whole_and_a_second_fetch_moves_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with two_stores(tmp_path) as (_, target, fetcher, port):
            assert await fetcher.fetch(REF, "127.0.0.1", port) == {"bytes": len(CONTENT)}
            assert target.path(REF.image).read_bytes() == CONTENT
            assert await fetcher.fetch(REF, "127.0.0.1", port) == {"bytes": 0}
            assert [path.name for path in target.folder.iterdir()] == [REF.image]

    asyncio.run(main())


def test_agents_with_certificates_exchange_images_among_themselves_only(tmp_path: Path) -> None:
    lab, stranger = Authority.create(tmp_path / "ca", "t"), Authority.create(tmp_path / "other", "t")
    a, b, elsewhere = (
        authority.issue("node", name, hosts=[host])[0].folder
        for authority, name, host in ((lab, "a", "127.0.0.1"), (lab, "b", "127.0.0.1"), (lab, "c", "192.0.2.1"))
    )
    other = stranger.issue("node", "a", hosts=["127.0.0.1"])[0].folder

    async def main() -> None:
        async with two_stores(tmp_path, server_tls=a, fetcher_tls=b) as (_, target, fetcher, port):
            assert await fetcher.fetch(REF, "127.0.0.1", port) == {"bytes": len(CONTENT)}
            assert target.path(REF.image).read_bytes() == CONTENT
            target.drop(REF.image)
        for server_tls, fetcher_tls in ((a, other), (other, b), (a, None), (None, b), (elsewhere, b)):
            async with two_stores(tmp_path, server_tls=server_tls, fetcher_tls=fetcher_tls) as (
                _,
                target,
                fetcher,
                port,
            ):
                with pytest.raises(DriverError):
                    await fetcher.fetch(REF, "127.0.0.1", port)
                assert not target.path(REF.image).exists()

    asyncio.run(main())


def test_a_transfer_that_broke_off_is_resumed(tmp_path: Path) -> None:
    async def main() -> None:
        async with two_stores(tmp_path) as (_, target, fetcher, port):
            (target.folder / (REF.image + ".part")).write_bytes(CONTENT[:1_000_001])
            assert await fetcher.fetch(REF, "127.0.0.1", port) == {"bytes": len(CONTENT) - 1_000_001}
            assert target.path(REF.image).read_bytes() == CONTENT

    asyncio.run(main())


def test_a_wrong_content_never_gets_the_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with two_stores(tmp_path) as (_, target, fetcher, port):
            (target.folder / (REF.image + ".part")).write_bytes(b"x" * 1000)
            with pytest.raises(ImageLostError, match="digest"):
                await fetcher.fetch(REF, "127.0.0.1", port)
            assert list(target.folder.iterdir()) == []

    asyncio.run(main())


@pytest.mark.parametrize(
    ("token", "image", "words", "code"),
    [("no", REF.image, "token", None), ("t", "b-s1.img", "b-s1.img", "image-lost"),
     ("t", REF.image, "another size", "image-lost")],
)  # fmt: skip
def test_a_stranger_and_a_missing_image_are_refused(
    tmp_path: Path, token: str, image: str, words: str, code: str | None
) -> None:
    async def main() -> None:
        async with two_stores(tmp_path, token) as (_, target, fetcher, port):
            with pytest.raises(DriverError, match=words) as refused:
                await fetcher.fetch(ImageRef(image=image, bytes=5, digest="0"), "127.0.0.1", port)
            assert refused.value.failure_code == code
            assert list(target.folder.iterdir()) == []

    asyncio.run(main())


def test_nobody_there_is_one_clear_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with two_stores(tmp_path) as (_, _, fetcher, port):
            pass
        with pytest.raises(DriverError, match=rf"a-s1\.img from 127\.0\.0\.1:{port}"):
            await fetcher.fetch(REF, "127.0.0.1", port)

    asyncio.run(main())


@pytest.mark.parametrize("name", ["../x.img", "/etc/x.img", "a/b.img", "x", ".img", "A.img", "a..img", "a.img\n"])
def test_names_that_could_lead_out_of_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DriverError, match="image name"):
        ImageStore(tmp_path).path(name)
