"""A lab under attack: by who has the certificate of another node, and by who can even command. For any driver."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from doors import LAB, Doors
from support.deadlines import PATIENT_DEADLINES
from support.live import ENDLESS_UNITS, HANG_S, until, wait_until

from node_agent.agent import Agent, AgentConfig
from node_agent.drivers.protocol import Driver
from testbed.bus import topics
from testbed.bus.client import MqttBus
from testbed.bus.lease import new_token, token_digest
from testbed.bus.messages import (
    Adopt,
    AnyAction,
    Command,
    DropImage,
    FetchImage,
    GuestSpec,
    ImageRef,
    Lease,
    ListGuests,
    Migrate,
    MpiJoin,
    MpiPass,
    Native,
    NodeStatus,
    Ping,
    ProgramSpec,
    Quit,
    Save,
    SetCaps,
    Start,
    Stop,
    encode,
)
from testbed.bus.migration import Destination
from testbed.bus.protocol import BusError
from testbed.bus.requests import CommandFailedError, Requester
from testbed.bus.telemetry import GuestSample, guests_in
from testbed.control.fleet import Fleet, rule_of
from testbed.control.lease import hold_lease
from testbed.secure.broker_log import acts_of
from testbed.suspicious_acts import FILE, ActFile, ActKind

MESSAGES = 10_000  # of noise
COMMANDS = topics.node_topic(LAB, "n2", "command")
REPLIES = topics.reply_topic(LAB, "alice", "n2")


@dataclass
class World:
    """A lab at work: an honest agent, the controller that drives it, and an attacker on another node."""

    doors: Doors
    fleet: Fleet
    requester: Requester
    controller: MqttBus
    attacker: MqttBus
    token: str
    folder: Path
    memory_mib: int
    bad_replies: Counter[tuple[str, ActKind]]

    def spec(self, guest: str, **program: object) -> GuestSpec:
        """Return an endless guest."""
        wanted = {"name": "eatcpu", "work_units": ENDLESS_UNITS, "units_per_iteration": 100, "seed": 1, **program}
        return GuestSpec(
            guest=guest, run="t", job=1, task=0, program=ProgramSpec(**wanted), cpu_cores=1.0,
            memory_mib=self.memory_mib, address="10.77.1.9/16",
        )  # fmt: skip

    async def guests(self) -> list[GuestSample]:
        """Return what the agent says that it holds."""
        return guests_in(await self.fleet.call(0, ListGuests(), HANG_S))

    def acts(self) -> Counter[tuple[str, ActKind]]:
        """Return how often who was seen at what, by the broker's log, the agent and the controller."""
        seen = Counter[tuple[str, ActKind]]()
        told = [*acts_of(self.doors.log.read_text().splitlines(), LAB), *ActFile(self.folder / "n2" / FILE).read()]
        for act in told:
            seen[act.node, act.kind] += act.count
        return seen + self.bad_replies


@asynccontextmanager
async def world(doors: Doors, folder: Path, driver: Driver, memory_mib: int) -> AsyncIterator[World]:
    """Have an agent of n2 at work on one guest; it must be at work on that guest alone in the end."""
    token, bad_replies = new_token(), Counter[tuple[str, ActKind]]()
    config = AgentConfig(LAB, "n2", 2.0, 8 * memory_mib, folder / "n2", folder / "n2" / "images", telemetry_s=0.2)
    agent = Agent(config, driver, lambda presence: MqttBus(doors.agent("n2"), "n2", presence))
    async with (
        asyncio.timeout(HANG_S),
        MqttBus(doors.controller(), "alice", keep_session=False) as controller,
        MqttBus(doors.agent("n1"), "n1", keep_session=False) as attacker,
        hold_lease(controller, LAB, token, HANG_S),
        Requester(controller, LAB, "alice", lambda: token) as requester,
    ):
        requester.on_bad_reply = lambda node, kind, _text: bad_replies.update([(node, kind)])
        fleet = Fleet(controller, LAB, ["n2"], requester, rule_of(PATIENT_DEADLINES))
        await fleet.open()
        running = asyncio.create_task(agent.run())
        try:
            await fleet.wait_for_all(HANG_S)
            lab = World(doors, fleet, requester, controller, attacker, token, folder, memory_mib, bad_replies)
            await fleet.call(0, Start(spec=lab.spec("dfrs-a"), cap_cores=0.1, verify=False), HANG_S)
            yield lab
            (left,) = await lab.guests()
            assert (left.guest, left.state) == ("dfrs-a", "running"), "nothing happened to it"
            assert left.cap_cores == pytest.approx(0.1)
            assert fleet.nodes[0].online
        finally:
            agent.stop()
            await running


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
        with pytest.raises(BusError, match="does not let n1 subscribe to"):
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
        for topic in (REPLIES, topics.reply_topic(LAB, "alice", "n1")):  # the first is that of n2
            await world.attacker.publish(topic, json.dumps(forged).encode(), qos=0)
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
    payload = command(Start(spec=world.spec("dfrs-b"), cap_cores=0.5, verify=False), world.token, command_id="f" * 16)
    await world.controller.publish(COMMANDS, payload)
    await world.fleet.call(0, ListGuests(settled=("dfrs-b",)), HANG_S)  # once its command is over
    await world.fleet.call(0, Stop(guest="dfrs-b"), HANG_S)
    for _ in range(10):
        await world.controller.publish(COMMANDS, payload)
    await world.fleet.call(0, Ping(), HANG_S)
    assert [sample.guest for sample in await world.guests()] == ["dfrs-a"], "each id is done once"


async def lead_out_of_its_folders(world: World) -> None:
    outside = world.folder / "outside.img"
    outside.write_bytes(b"precious")
    image = ImageRef(image="../../outside.img", bytes=8, digest="0" * 32)
    strange = "../../outside"
    for action in (
        DropImage(image=image.image), DropImage(image=str(outside)), DropImage(image="..img/../../outside.img"),
        FetchImage(image=image, host="127.0.0.1", port=9), Save(guest="dfrs-a", image=image.image),
        Start(spec=world.spec(strange), cap_cores=0.5, image=image),
        Start(spec=world.spec("dfrs-c"), cap_cores=0.5, image=image),
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
        command(Start(spec=world.spec("dfrs-z"), cap_cores=1.0), "no lease"),
        encode(NodeStatus(node="n2", online=True)),
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


LAUNCH = "/usr/bin/hydra_pmi_proxy --control-port 203.0.113.9:1 --proxy-id 0"
TARGETS = (
    "qemu+ext://127.0.0.1/system?command=/bin/sh", "qemu+ssh://127.0.0.1/system?keyfile=/root/.ssh/id_rsa",
    "qemu+unix:///system?socket=/tmp/x", "qemu+tls://203.0.113.9/system", "qemu+tls://127.0.0.1/system?no_verify=1",
    "qemu+tcp://127.0.0.1:80/system", "test:///default",
)  # fmt: skip


async def order_what_must_not_be(world: World) -> None:
    """Everything that a stolen lease, or a controller that was broken into, could ask for; none of it is done."""
    good = world.spec("dfrs-f")
    here = Destination(uri="qemu+tls://127.0.0.1/system", host="127.0.0.1", node="n1")
    orders: list[AnyAction] = [
        *(
            Migrate(guest="dfrs-a", to=msgspec.structs.replace(here, uri=uri), budget_s=5.0, no_progress_s=5.0)
            for uri in TARGETS
        ),
        *(
            Migrate(guest="dfrs-a", to=msgspec.structs.replace(here, **{key: value}), budget_s=5.0, no_progress_s=5.0)
            for key, value in (
                ("host", "127.0.0.1 -o x"), ("node", "../n1"), ("partition", "/../../x"), ("bridge", "x; reboot"),
            )
        ),
        Adopt(spec=good, cap_cores=0.1), Adopt(spec=world.spec("../../outside"), cap_cores=0.1),
        Adopt(spec=world.spec("dfrs-a", workers=10**9), cap_cores=0.1),
        MpiJoin(guest="dfrs-a", session="0" * 16), MpiJoin(guest="dfrs-a", session="../../outside"),
        MpiPass(guest="dfrs-a", session=LAUNCH, number=1, keys=()),
        Native(program=world.spec("x", name="/bin/sh").program, seconds=0.1),
        Native(program=world.spec("x", name="../../outside").program, seconds=0.1),
        Native(program=world.spec("x", workers=10**9).program, seconds=0.1),
        Native(program=world.spec("x", ranks=10**6).program, seconds=0.1),
        Native(program=good.program, seconds=1e308), Native(program=good.program, seconds=0.1, cap_cores=-1.0),
        Start(spec=world.spec("dfrs-f", name="/bin/sh"), cap_cores=0.1),
        Start(spec=world.spec("dfrs-f", topology="x init=/bin/sh"), cap_cores=0.1),
        Start(spec=msgspec.structs.replace(good, address="10.77.1.9/16 init=/bin/sh"), cap_cores=0.1),
        Start(spec=msgspec.structs.replace(good, memory_mib=10**9), cap_cores=0.1),
        Start(spec=msgspec.structs.replace(good, memory_mib=-1), cap_cores=0.1),
        Start(spec=good, cap_cores=-1.0), Start(spec=good, cap_cores=1e308), SetCaps(caps={"dfrs-a": -1.0}),
    ]  # fmt: skip
    for order in orders:
        try:
            await world.fleet.call(0, order, HANG_S)
        except CommandFailedError:
            continue
        pytest.fail(f"{order} was done")
    assert [sample.guest for sample in await world.guests()] == ["dfrs-a"]


@dataclass(frozen=True, slots=True)
class Attack:
    """What is tried, and whom the lab's operator sees at what then."""

    play: Callable[[World], Awaitable[None]]
    seen: tuple[str, ActKind]


ATTACKS = (
    Attack(forge_topics_of_others, ("n1", ActKind.DENIED_PUBLISH)),
    Attack(command_with_a_stolen_token, ("n1", ActKind.DENIED_PUBLISH)),
    Attack(take_the_lease, ("n1", ActKind.DENIED_PUBLISH)),
    Attack(listen_to_everything, ("n1", ActKind.FOREIGN_SUBSCRIPTION)),
    Attack(forge_replies, ("n1", ActKind.BAD_MESSAGE)),
    Attack(command_without_the_live_lease, ("n2", ActKind.REFUSED_COMMAND)),
    Attack(replay_a_command, ("n2", ActKind.REFUSED_COMMAND)),
    Attack(lead_out_of_its_folders, ("n2", ActKind.REFUSED_COMMAND)),
    Attack(order_what_must_not_be, ("n2", ActKind.REFUSED_COMMAND)),
    Attack(send_monsters, ("n2", ActKind.REFUSED_COMMAND)),
    Attack(send_noise, ("n2", ActKind.REFUSED_COMMAND)),
)


def attack_name(attack: Attack) -> str:
    return attack.play.__name__


def play(attack: Attack, doors: Doors, folder: Path, driver: Driver, memory_mib: int) -> None:
    """Do it to an agent with a driver; nothing happens, the agent lives, and it is seen."""

    async def main() -> tuple[Counter[tuple[str, ActKind]], World]:
        async with world(doors, folder, driver, memory_mib) as lab:
            before = lab.acts()
            await attack.play(lab)
        return before, lab

    before, lab = asyncio.run(main())
    wait_until(lambda: lab.acts()[attack.seen] > before[attack.seen], f"a line that tells of {attack.seen}")
