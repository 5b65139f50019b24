"""Images of a real agent: neither certificates nor the lease's token give access, only a ticket of the controller."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.live import HANG_S, until

from node_agent.agent import Agent, AgentConfig
from node_agent.drivers.null import NullDriver
from node_agent.drivers.protocol import DriverError, ImageLostError
from node_agent.image_notes import ImageNote, finish_note
from node_agent.programs.image import new_digest
from testbed.bus.lease import new_token, token_digest
from testbed.bus.memory import MemoryHub
from testbed.bus.messages import (
    DropImage,
    FetchImage,
    GuestSpec,
    Hold,
    ImageRef,
    OfferImage,
    ProgramSpec,
    Save,
    Start,
    Stop,
)
from testbed.bus.suspicious_acts import ActKind
from testbed.bus.tls import client_context
from testbed.lab.lease import hold_lease
from testbed.lab.secure.authority import Authority

CONTENT = b"memory of a guest" * 1000


def put(agent: Agent, image: str, content: bytes, digest: str = "0") -> None:
    """Put an image into the store of an agent, with the note of an earlier agent."""
    path = agent._stores.path(image)
    path.write_bytes(content)
    finish_note(path, ImageNote(bytes=len(content), digest=digest))


def ref(name: str) -> ImageRef:
    digest = new_digest()
    digest.update(CONTENT)
    return ImageRef(image=name, bytes=len(CONTENT), digest=digest.hexdigest())


@dataclass
class Lab:
    """Two agents, n1 and n2, that exchange images by TLS; n2 has two of them."""

    authority: Authority
    agents: dict[str, Agent]
    folder: Path
    token: str  # token of the live lease, which each agent knows from its commands

    def port(self, node: str) -> int:
        return self.agents[node]._server.port

    async def ask(self, as_node: str, **request: object) -> dict[str, object]:
        """Connect to n2's image server with the certificate of a node, and send a request."""
        tls = client_context(self.authority.folder / "nodes" / as_node, "peers.pem")
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port("n2"), ssl=tls)
        try:
            writer.write(json.dumps(request).encode() + b"\n")
            answer = await reader.readline()
            rest = await reader.read()
        finally:
            writer.close()
        assert CONTENT not in rest
        return json.loads(answer)


@asynccontextmanager
async def lab(folder: Path) -> AsyncIterator[Lab]:
    authority = Authority.create(folder / "ca", "t")
    hub, agents = MemoryHub(), {}
    for name in ("n1", "n2"):
        tls = authority.issue("node", name, hosts=["127.0.0.1"])[0].folder
        place = folder / name
        config = AgentConfig("t", name, 1.0, 1000, place, place / "images", tls_dir=tls)
        agents[name] = Agent(config, NullDriver("whole"), lambda presence: hub.client(presence.topic, presence))
    running = [asyncio.create_task(agent.run()) for agent in agents.values()]
    token = new_token()
    try:
        async with (
            asyncio.timeout(HANG_S),
            hub.client("controller") as controller,
            hold_lease(controller, "t", token, HANG_S),
        ):
            # An agent clears its images when it receives the lease: images that were written before may be removed.
            await until(lambda: all(agent._lease.allows(token) for agent in agents.values()), "the lease at the agents")
            for image in ("a.img", "b.img"):
                put(agents["n2"], image, CONTENT)
            yield Lab(authority, agents, folder, token)
    finally:
        for agent in agents.values():
            agent.stop()
        await asyncio.gather(*running)


def test_a_node_opens_only_the_image_that_it_is_told_to_fetch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    async def main() -> None:
        async with lab(tmp_path) as world:
            one, two = world.agents["n1"], world.agents["n2"]
            token = world.token
            assert two._lease.allows(token)
            for wrong in (token, token_digest(token), ""):
                answer = await world.ask("n1", token=token, ticket=wrong, image="b.img", bytes=1, digest="", offset=0)
                assert answer["error"] == "no such ticket is out"
            ticket = new_token()
            image = ref("a.img")
            offer = OfferImage(image=image, ticket_digest=token_digest(ticket), to="n1", for_s=HANG_S)
            assert await two.perform(offer) == {}
            fetch = FetchImage(image=image, host="127.0.0.1", port=world.port("n2"), ticket=ticket)
            assert await one.perform(fetch) == {"bytes": len(CONTENT)}
            whole = {"image": "a.img", "bytes": len(CONTENT), "digest": image.digest, "offset": 0}
            again = await world.ask("n1", ticket=ticket, **whole)
            assert again["error"] == "the ticket for a.img was used"
            own = new_token()
            await two.perform(OfferImage(image=image, ticket_digest=token_digest(own), to="n1", for_s=HANG_S))
            thief = await world.ask("n2", ticket=own, **whole)
            assert thief["error"] == "the ticket for a.img is node n1's"
            other = await world.ask(
                "n1", ticket=ticket, image="b.img", bytes=len(CONTENT), digest=image.digest, offset=0
            )
            assert other["error"] == "the ticket for a.img was used"
            # the lease ends, so all tickets are void
            late = new_token()
            await two.perform(OfferImage(image=image, ticket_digest=token_digest(late), to="n1", for_s=HANG_S))
            await two._abandon("the lease was released")
            void = await world.ask("n1", ticket=late, image="a.img", bytes=len(CONTENT), digest=image.digest)
            assert void["error"] == "no such ticket is out"
            assert two._acts.counts == {("n1", ActKind.REFUSED_IMAGE): 6, ("n2", ActKind.REFUSED_IMAGE): 1}

    asyncio.run(main())
    lines = [record.getMessage() for record in caplog.records if "image server" in record.getMessage()]
    assert lines
    refused = "image server: node {} at 127.0.0.1 refused: "
    assert all(line.startswith((refused.format("n1"), refused.format("n2"))) for line in lines)


def test_a_guest_starts_from_the_very_image_of_the_command(tmp_path: Path) -> None:
    program = ProgramSpec(name="eatcpu", work_units=10**12, units_per_iteration=100, seed=1)
    spec = GuestSpec(guest="g", run="t", job=1, task=0, program=program, cpu_cores=1.0, memory_mib=1)

    async def main() -> None:
        async with lab(tmp_path) as world:
            one = world.agents["n1"]
            await one.perform(Start(spec=spec, cap_cores=1.0, verify=False))
            await one.perform(Hold(guest="g"))
            saved = await one.perform(Save(guest="g", image="g.img"))
            image = ImageRef(image="g.img", bytes=int(str(saved["bytes"])), digest=str(saved["digest"]))
            for digest in ("", "0" * 32, image.digest[:-1]):
                wrong = ImageRef(image="g.img", bytes=image.bytes, digest=digest)
                with pytest.raises(ImageLostError, match=r"image g\.img: digest "):
                    await one.perform(Start(spec=spec, cap_cores=1.0, image=wrong, verify=False))
            await one.perform(Start(spec=spec, cap_cores=1.0, image=image, verify=False))
            await one.perform(Stop(guest="g"))
            # an image from before this agent is read first, before the driver uses it
            file = one._stores.path("g.img")
            content = file.read_bytes()
            await one.perform(DropImage(image="g.img"))
            put(one, "g.img", content.replace(b'"g"', b'"g" '), image.digest)
            with pytest.raises(ImageLostError, match="digest"):
                await one.perform(Start(spec=spec, cap_cores=1.0, image=image, verify=False))
            put(one, "g.img", content, image.digest)
            await one.perform(Start(spec=spec, cap_cores=1.0, image=image, verify=False))

    asyncio.run(main())


def test_an_order_that_makes_no_sense_is_one_line(tmp_path: Path) -> None:
    async def main() -> None:
        async with lab(tmp_path) as world:
            one = world.agents["n1"]
            for order in (
                FetchImage(image=ImageRef(image="x.img", bytes=1 << 62, digest="0"), host="127.0.0.1", port=9),
                FetchImage(image=ImageRef(image="x.img", bytes=0, digest=""), host="a" * 300, port=0),
                FetchImage(image=ImageRef(image="../x.img", bytes=1, digest=""), host="127.0.0.1", port=9),
                FetchImage(image=ImageRef(image="x.img", bytes=1, digest=""), host="\0", port=9),
            ):
                with pytest.raises((DriverError, Exception)) as refused:
                    await one.perform(order)
                assert hasattr(refused.value, "failure_code"), refused.value  # our error: no traceback is logged
                assert "\n" not in str(refused.value)

    asyncio.run(main())
