"""Two image stores on this machine, one of which serves the other, and a controller's tickets."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from node_agent.image_server import ImageServer
from node_agent.image_tickets import Tickets
from node_agent.images import ImageFetcher, ImageStore
from node_agent.programs.image import new_digest
from testbed.bus.lease import token_digest
from testbed.bus.messages import ImageRef, OfferImage
from testbed.bus.suspicious_acts import ActLog
from testbed.bus.tls import client_context, server_context

CONTENT = bytes(range(256)) * 9000


def digest_of(content: bytes) -> str:
    digest = new_digest()
    digest.update(content)
    return digest.hexdigest()


def ref(name: str = "a-s1.img", content: bytes = CONTENT) -> ImageRef:
    return ImageRef(image=name, bytes=len(content), digest=digest_of(content))


REF = msgspec.structs.replace(ref(), generation=3)


@dataclass
class Nodes:
    """Node a has the image REF and serves it; node b fetches. `now_s` is the clock of tickets."""

    source: ImageStore
    target: ImageStore
    server: ImageServer
    tickets: Tickets
    fetcher: ImageFetcher
    now_s: list[float]
    acts: ActLog  # of node a

    @property
    def port(self) -> int:
        return self.server.port

    def offer(self, image: ImageRef = REF, to: str = "b", for_s: float = 60.0) -> str:
        """Give node a a new ticket; returns the ticket."""
        ticket = secrets.token_hex(16)
        self.tickets.offer(OfferImage(image=image, ticket_digest=token_digest(ticket), to=to, for_s=for_s))
        return ticket

    async def fetch(self, image: ImageRef = REF, ticket: str | None = None) -> dict[str, object]:
        ticket = self.offer(image) if ticket is None else ticket
        return await self.fetcher.fetch(image, "127.0.0.1", self.port, ticket)

    async def say(self, line: bytes) -> bytes:
        """Send a line to the server without TLS; returns its whole answer, until it closes the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(line)
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()


@asynccontextmanager
async def two_nodes(
    tmp_path: Path, server_tls: Path | None = None, fetcher_tls: Path | None = None
) -> AsyncIterator[Nodes]:
    source, target = ImageStore(tmp_path / "a"), ImageStore(tmp_path / "b")
    (tmp_path / "a" / REF.image).write_bytes(CONTENT)
    now_s = [0.0]
    tickets, acts = Tickets(lambda: now_s[0]), ActLog(lambda _acts: None)
    server = ImageServer(source.path, tickets, server_tls and server_context(server_tls), acts)
    await server.open("127.0.0.1")
    tls = fetcher_tls and client_context(fetcher_tls, "peers.pem")
    try:
        yield Nodes(source, target, server, tickets, ImageFetcher(target, tls), now_s, acts)
    finally:
        await server.close()
