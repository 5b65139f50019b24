"""An attacker with the certificate of one node, and one who can even command: nothing happens, the agent lives."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from doors import LAB, Doors, open_doors
from support.deadlines import PATIENT_DEADLINES
from support.live import HANG_S, until

from node_agent.agent import Agent, AgentConfig
from node_agent.drivers.null import NullDriver
from testbed.bus import topics
from testbed.bus.client import MqttBus
from testbed.bus.lease import new_token, token_digest
from testbed.bus.messages import (
    Command,
    DropImage,
    FetchImage,
    GuestSpec,
    ImageRef,
    Lease,
    ListGuests,
    MpiJoin,
    NodeStatus,
    Ping,
    ProgramSpec,
    Quit,
    Save,
    Start,
    Stop,
    encode,
)
from testbed.bus.requests import CommandFailedError, Requester
from testbed.bus.telemetry import guests_in
from testbed.control.fleet import Fleet, rule_of
from testbed.control.lease import hold_lease

MESSAGES = 10_000
COMMANDS = topics.node_topic(LAB, "n2", "command")
REPLIES = topics.reply_topic(LAB, "alice")


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with open_doors(tmp_path_factory.mktemp("doors")) as opened:
        yield opened


@dataclass
class World:
    """A lab at work: an honest agent, its driver, the controller that drives it, and an attacker on another node."""

    doors: Doors
    driver: NullDriver
    fleet: Fleet
    requester: Requester
    controller: MqttBus
    attacker: MqttBus
    token: str
    folder: Path


@asynccontextmanager
async def world(doors: Doors, folder: Path) -> AsyncIterator[World]:
    driver, token = NullDriver("whole,live"), new_token()
    config = AgentConfig(LAB, "n2", 2.0, 1000, folder / "n2", folder / "n2" / "images", telemetry_s=0.2)
    agent = Agent(config, driver, lambda presence: MqttBus(doors.agent("n2"), "n2", presence))
    async with (
        asyncio.timeout(HANG_S),
        MqttBus(doors.controller(), "alice", keep_session=False) as controller,
        MqttBus(doors.agent("n1"), "n1", keep_session=False) as attacker,
        hold_lease(controller, LAB, token, HANG_S),
        Requester(controller, LAB, "alice", lambda: token) as requester,
    ):
        fleet = Fleet(controller, LAB, ["n2"], requester, rule_of(PATIENT_DEADLINES))
        await fleet.open()
        running = asyncio.create_task(agent.run())
        try:
            await fleet.wait_for_all(HANG_S)
            await fleet.call(0, Start(spec=spec("dfrs-a"), cap_cores=0.5, verify=False), HANG_S)
            yield World(doors, driver, fleet, requester, controller, attacker, token, folder)
            (left,) = guests_in(await fleet.call(0, ListGuests(), HANG_S))
            assert (left.guest, left.cap_cores, left.state) == ("dfrs-a", 0.5, "running"), "nothing happened to it"
            assert fleet.nodes[0].online
        finally:
            agent.stop()
            await running


def spec(guest: str) -> GuestSpec:
    program = ProgramSpec(name="eatcpu", work_units=10**12, units_per_iteration=100, seed=1)
    return GuestSpec(guest=guest, run="t", job=1, task=0, program=program, cpu_cores=1.0, memory_mib=10)


def command(action: object, token: str, reply_to: str = REPLIES, command_id: str = "") -> bytes:
    return encode(
        Command(id=command_id or secrets.token_hex(8), lease=token, reply_to=reply_to, deadline_s=HANG_S, action=action)
    )


async def forge_topics_of_others(world: World) -> None:
    for kind in ("status", "telemetry", "event", "command"):
        await world.attacker.publish(topics.node_topic(LAB, "n2", kind), b"{}", retain=True)
    offline = encode(NodeStatus(node="n2", online=False, reason="forged"))
    await world.attacker.publish(topics.node_topic(LAB, "n2", "status"), offline, retain=True)
    await world.attacker.publish(topics.node_topic(LAB, "n1", "status"), offline)  # its own topic, another's name


async def command_with_a_stolen_token(world: World) -> None:
    for action in (Stop(guest="dfrs-a"), Quit()):
        await world.attacker.publish(COMMANDS, command(action, world.token))


async def take_the_lease(world: World) -> None:
    own = new_token()
    for released in (True, False):
        lease = Lease(digest=token_digest(own), holder="x", ttl_s=HANG_S, expires_unix_s=1e12, released=released)
        await world.attacker.publish(topics.lease_topic(LAB), encode(lease), retain=True)
        real = Lease(digest=token_digest(world.token), holder="x", ttl_s=HANG_S, expires_unix_s=1e12, released=True)
        await world.attacker.publish(topics.lease_topic(LAB), encode(real), retain=True)
        proven = msgspec.structs.replace(real, token=world.token)  # which every node knows from its commands
        await world.attacker.publish(topics.lease_topic(LAB), encode(proven), retain=True)
        for name in ("alice", "n1"):
            await world.attacker.publish(topics.release_topic(LAB, name), encode(proven))


async def listen_to_everything(world: World) -> None:
    heard: list[str] = []

    async def hear(topic: str, payload: bytes) -> None:
        del payload
        heard.append(topic)

    for pattern in (f"testbed/v1/{LAB}/#", "#", COMMANDS, topics.reply_pattern(LAB)):
        await world.attacker.subscribe(pattern, hear)
    for _ in range(5):
        await world.fleet.call(0, Ping(), HANG_S)
    await world.attacker.subscribe(topics.node_topic(LAB, "n1", "command"), hear)
    await world.controller.publish(topics.node_topic(LAB, "n1", "command"), b"end")
    await until(lambda: topics.node_topic(LAB, "n1", "command") in heard, "the last message")
    assert set(heard) <= {topics.lease_topic(LAB), topics.node_topic(LAB, "n1", "command")}


async def forge_replies(world: World) -> None:
    asking = asyncio.create_task(world.fleet.call(0, Ping(), HANG_S))
    for guess in range(1000):
        forged = {"v": 1, "id": f"{guess:016x}", "node": "n2", "status": "failed", "error": "forged"}
        await world.attacker.publish(REPLIES, json.dumps(forged).encode(), qos=0)
    assert "mono_ns" in await asking


async def command_without_the_live_lease(world: World) -> None:
    for number, token in enumerate(("", "x", token_digest(world.token), new_token())):
        async with (
            MqttBus(world.doors.controller(), f"stranger-{number}", keep_session=False) as bus,
            Requester(bus, LAB, f"stranger-{number}", lambda token=token: token) as stranger,
        ):
            with pytest.raises(CommandFailedError, match="its lease is not the one in force here"):
                await stranger.call("n2", Stop(guest="dfrs-a"), HANG_S)


async def replay_a_command(world: World) -> None:
    payload = command(Start(spec=spec("dfrs-b"), cap_cores=0.5, verify=False), world.token, command_id="f" * 16)
    await world.controller.publish(COMMANDS, payload)
    await until(lambda: any(sample.guest == "dfrs-b" for sample in world.driver.sample()), "the guest")
    await world.fleet.call(0, Stop(guest="dfrs-b"), HANG_S)
    for _ in range(10):
        await world.controller.publish(COMMANDS, payload)
    await world.fleet.call(0, Ping(), HANG_S)
    assert [sample.guest for sample in world.driver.sample()] == ["dfrs-a"], "each id is done once"


async def lead_out_of_its_folders(world: World) -> None:
    outside = world.folder / "outside.img"
    outside.write_bytes(b"precious")
    image = ImageRef(image="../../outside.img", bytes=8, digest="0" * 32)
    strange = "../../outside"
    for action in (
        DropImage(image=image.image), DropImage(image=str(outside)), DropImage(image="..img/../../outside.img"),
        FetchImage(image=image, host="127.0.0.1", port=9), Save(guest="dfrs-a", image=image.image),
        Start(spec=spec(strange), cap_cores=0.5, image=image), Start(spec=spec("dfrs-c"), cap_cores=0.5, image=image),
        MpiJoin(guest=strange, session="0" * 16), Stop(guest=strange),
    ):  # fmt: skip
        try:
            await world.fleet.call(0, action, HANG_S)
        except CommandFailedError:
            continue
        assert isinstance(action, Stop), f"{action} was done"
    assert outside.read_bytes() == b"precious"
    places = {path.name for path in world.folder.iterdir()}
    assert places == {"outside.img", "n2"}


async def send_monsters(world: World) -> None:
    deep = b'{"v":1,"id":"d","lease":"","reply_to":"%s","deadline_s":1,"action":' % REPLIES.encode()
    for monster in (b"[" * 100_000, deep + b'{"a":' * 100_000, b"\x00" * 900_000, b"\xff" * 1000, b'"', b""):
        await world.controller.publish(COMMANDS, monster)


async def send_noise(world: World) -> None:
    """Valid commands with bytes changed, cut and repeated, and noise; from who may command and from who may not."""
    draw = random.Random(7)  # noqa: S311  # no secret
    seeds = [
        command(Ping(), "no lease"), command(Stop(guest="dfrs-a"), "no lease"), command(Quit(), "no lease"),
        command(Start(spec=spec("dfrs-z"), cap_cores=1.0), "no lease"), encode(NodeStatus(node="n2", online=True)),
    ]  # fmt: skip
    for number in range(MESSAGES):
        payload = bytearray(draw.choice(seeds))
        for _ in range(draw.randint(1, 8)):
            at = draw.randrange(len(payload))
            change = draw.randrange(4)
            if change == 0:
                payload[at] = draw.randrange(256)
            elif change == 1:
                del payload[at : at + draw.randint(1, 20)]
            elif change == 2:
                payload[at:at] = draw.randbytes(draw.randint(1, 20))
            else:
                payload = payload[at:] + payload[:at]
            payload = payload or bytearray(b"x")
        sender = world.controller if number % 2 else world.attacker
        await sender.publish(COMMANDS, bytes(payload), qos=0)


ATTACKS: tuple[Callable[[World], Awaitable[None]], ...] = (
    forge_topics_of_others, command_with_a_stolen_token, take_the_lease, listen_to_everything, forge_replies,
    command_without_the_live_lease, replay_a_command, lead_out_of_its_folders, send_monsters, send_noise,
)  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_nothing_happens_and_the_agent_lives(
    doors: Doors, tmp_path: Path, attack: Callable[[World], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with world(doors, tmp_path) as lab:
            await attack(lab)

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    if attack in {send_monsters, send_noise}:
        assert any("bad record on" in record.message for record in caplog.records), "it is logged"
