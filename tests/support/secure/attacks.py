"""A lab under attack: by a holder of another node's certificate, and by one that can even command. For any driver."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from node_agent.agent import Agent, AgentConfig
from node_agent.drivers.protocol import Driver
from support.deadlines import PATIENT_DEADLINES
from support.live import HANG_S, until, wait_until
from support.secure import orders
from support.secure.doors import LAB, Doors
from testbed.bus import topics
from testbed.bus.client import MqttBus
from testbed.bus.lease import new_token, token_digest
from testbed.bus.messages import (
    AnyAction,
    Cancel,
    Command,
    DropImage,
    FetchImage,
    GuestEvent,
    GuestSpec,
    ImageRef,
    Lease,
    ListGuests,
    MpiJoin,
    NodeStatus,
    Ping,
    Quit,
    Reply,
    Save,
    Start,
    Stop,
    Watch,
    encode,
)
from testbed.bus.protocol import BusError
from testbed.bus.requests import CommandFailedError, Requester
from testbed.bus.suspicious_acts import FILE, ActFile, ActKind, ActLog
from testbed.bus.telemetry import GuestSample, Telemetry, guests_in
from testbed.errors import shown
from testbed.lab.fleet import Fleet
from testbed.lab.leased import lease_lab
from testbed.lab.secure.broker_log import acts_of

MESSAGES = 10_000  # number of noise messages
FORGED = 400  # forged replies to a command, and as many to commands that do not exist
COMMANDS = topics.node_topic(LAB, "n2", "command")
REPLIES = topics.reply_topic(LAB, "alice", "n2")
TELEMETRY = Telemetry(
    node="n2", boot="b", mono_ns=1, cpu_frac=0.5, memory_used_mib=10.0, disk_read_mib=0.0, disk_written_mib=0.0,
    net_received_mib=0.0, net_sent_mib=0.0, agent_cpu_s=1.0, agent_rss_mib=60.0, guests=(),
)  # fmt: skip


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
    agent: Agent
    seen: ActLog  # acts that the controller has detected

    def spec(self, guest: str, **program: object) -> GuestSpec:
        """Return an endless guest."""
        return orders.spec_of(guest, self.memory_mib, **program)

    def refusals(self) -> int:
        """Return how many commands the agent has recorded as suspicious."""
        return self.agent._acts.counts.get(("n2", ActKind.REFUSED_COMMAND), 0)

    def moves_live(self) -> bool:
        """Whether the agent's guests can migrate live."""
        return "live" in self.fleet.facts(0).capabilities

    async def guests(self) -> list[GuestSample]:
        """Return the guests that the agent reports."""
        return guests_in(await self.fleet.call(0, ListGuests(), HANG_S))

    def acts(self) -> Counter[tuple[str, ActKind]]:
        """Return the number of detected acts by party and kind, from the broker's log, the agent and the controller."""
        seen = Counter[tuple[str, ActKind]]()
        told = [*acts_of(self.doors.log.read_text().splitlines(), LAB), *ActFile(self.folder / "n2" / FILE).read()]
        for act in told:
            seen[act.node, act.kind] += act.count
        return seen + Counter(self.seen.counts)


@asynccontextmanager
async def world(doors: Doors, folder: Path, driver: Driver, memory_mib: int) -> AsyncIterator[World]:
    """Run an agent of n2 with one guest; at the end it must still run that guest, and no other."""
    seen = ActLog()
    config = AgentConfig(LAB, "n2", 2.0, 8 * memory_mib, folder / "n2", folder / "n2" / "images", telemetry_s=0.2)
    agent = Agent(config, driver, lambda presence: MqttBus(doors.agent("n2"), "n2", presence))
    async with (
        asyncio.timeout(HANG_S),
        MqttBus(doors.controller(), "alice", keep_session=False) as controller,
        MqttBus(doors.agent("n1"), "n1", keep_session=False) as attacker,
        lease_lab(controller, LAB, ["n2", "n1"], "alice", deadlines=PATIENT_DEADLINES, acts=seen) as leased,
    ):
        fleet, requester, token = leased.fleet, leased.requester, leased.token
        await fleet.open()
        running = asyncio.create_task(agent.run())
        try:
            await until(lambda: fleet.nodes[0].online, "the honest agent")
            lab = World(doors, fleet, requester, controller, attacker, token, folder, memory_mib, agent, seen)
            await fleet.call(0, Start(spec=lab.spec("dfrs-a"), cap_cores=0.1, verify=False), HANG_S)
            yield lab
            (left,) = await lab.guests()
            assert (left.guest, left.state) == ("dfrs-a", "running"), "the guest is unharmed"
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
    end = GuestEvent(node="n2", guest="dfrs-a", event="failed", mono_ns=1, detail={"reason": "forged"})
    told: list[object] = []
    world.fleet.on_guest_event = lambda _node, event: told.append(event)
    for kind, record in (("status", offline), ("event", encode(end))):  # on its own topics, in the name of another node
        await world.attacker.publish(topics.node_topic(LAB, "n1", kind), record)
    await world.attacker.publish(topics.node_topic(LAB, "n1", "telemetry"), encode(TELEMETRY), qos=1)
    await until(lambda: world.seen.counts.get(("n1", ActKind.FALSE_REPORT), 0) >= 3, "three false reports")
    assert told == []


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
        proven = msgspec.structs.replace(real, token=world.token)  # every node knows the token from its commands
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
    """The command is under way until it is cancelled, and the attacker knows its id; no forged reply may end it."""
    ids = set(world.requester._replies)
    watch = Watch(guests=("dfrs-a",), every_s=1.0, for_s=120.0)
    asking = asyncio.create_task(world.fleet.call(0, watch, HANG_S))
    await until(lambda: set(world.requester._replies) - ids, "a command under way")
    (command_id,) = set(world.requester._replies) - ids
    asked_too = asyncio.create_task(world.requester.call("n1", Ping(), HANG_S))  # only a called node may reply
    for guess in range(FORGED):
        status = ("failed", "done", "rejected", "accepted")[guess % 4]
        for each in (command_id, f"{guess:016x}"):
            forged = Reply(id=each, node=("n2", "n1")[guess // 4 % 2], status=status, result={"t_s": []})
            for topic in (REPLIES, topics.reply_topic(LAB, "alice", "n1")):  # the first topic belongs to n2
                await world.attacker.publish(topic, encode(forged), qos=0)
    await until(lambda: world.seen.counts.get(("n1", ActKind.FALSE_REPORT), 0) >= FORGED, "false reports")
    asked_too.cancel()
    assert not asking.done()
    await world.controller.publish(COMMANDS, command(Cancel(command=command_id), world.token))
    with pytest.raises(CommandFailedError, match="cancelled by its sender"):
        await asking


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
    await world.fleet.call(0, ListGuests(settled=("dfrs-b",)), HANG_S)  # after the end of its command
    await world.fleet.call(0, Stop(guest="dfrs-b"), HANG_S)
    for _ in range(10):
        await world.controller.publish(COMMANDS, payload)
    await world.fleet.call(0, Ping(), HANG_S)
    assert [sample.guest for sample in await world.guests()] == ["dfrs-a"], "each command id is executed once"


async def lead_out_of_its_folders(world: World) -> None:
    outside = world.folder / "outside.img"
    outside.write_bytes(b"precious")
    image = ImageRef(image="../../outside.img", bytes=8, digest="0" * 32)
    strange = "../../outside"
    await refused(world, (
        DropImage(image=image.image), DropImage(image=str(outside)), DropImage(image="..img/../../outside.img"),
        FetchImage(image=image, host="127.0.0.1", port=9), Save(guest="dfrs-a", image=image.image),
        Start(spec=world.spec(strange), cap_cores=0.5, image=image),
        Start(spec=world.spec("dfrs-c"), cap_cores=0.5, image=image),
        MpiJoin(guest=strange, session="0" * 16), Stop(guest=strange),
    ))  # fmt: skip
    assert outside.read_bytes() == b"precious"
    places = {path.name for path in world.folder.iterdir()}
    assert places == {"outside.img", "n2"}


async def send_monsters(world: World) -> None:
    deep = b'{"v":1,"id":"d","lease":"","reply_to":"%s","deadline_s":1,"action":' % REPLIES.encode()
    for monster in (b"[" * 100_000, deep + b'{"a":' * 100_000, b"\x00" * 900_000, b"\xff" * 1000, b'"', b""):
        await world.controller.publish(COMMANDS, monster)


async def send_noise(world: World) -> None:
    """Valid commands with bytes changed, cut and repeated, and noise; from authorised and unauthorised senders."""
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


async def refused(world: World, given: Sequence[AnyAction], *, seen: bool = True) -> None:
    """Give orders with the live token one by one: each fails, and the agent records each of those that are `seen`."""
    for order in given:
        before = world.refusals()
        with pytest.raises(CommandFailedError) as failed:
            await world.fleet.call(0, order, HANG_S)
        assert "\n" not in str(failed.value)
        assert world.refusals() > before or not seen, f"{shown(order, 500)} was not noted"
    assert [sample.guest for sample in await world.guests()] == ["dfrs-a"]


async def migrate_to_what_is_no_node(world: World) -> None:
    """Test hostile orders; a controller may give the first one if guests migrate live."""
    may_be, *others = orders.migrations("dfrs-a")
    await refused(world, [may_be], seen=not world.moves_live())
    await refused(world, others)


async def adopt_what_never_arrived(world: World) -> None:
    """Test hostile orders; a controller may give the first one, to find out where a guest is."""
    may_be, *others = orders.adoptions(world.spec("dfrs-f"))
    await refused(world, [may_be], seen=not world.moves_live())
    await refused(world, others)


async def join_what_is_no_rank(world: World) -> None:
    await refused(world, orders.joins("dfrs-a"))


async def run_other_programs_natively(world: World) -> None:
    await refused(world, orders.natives(world.spec("dfrs-f")))


async def start_what_makes_no_sense(world: World) -> None:
    await refused(world, orders.starts(world.spec("dfrs-f")))
    await refused(world, orders.unseen(world.spec("dfrs-f")), seen=False)


async def let_a_rank_pass_by_lies(world: World) -> None:
    """A real rank of two waits in its first barrier; it never passes, with any keys that are sent as the other's."""
    rank, entered = "dfrs-m", asyncio.Event()
    world.fleet.on_mpi_barrier = lambda _node, event: entered.set() if event.guest == rank else None
    spec = world.spec(rank, name="patterns", ranks=2)
    await world.fleet.call(0, Start(spec=spec, cap_cores=0.1, verify=False), HANG_S)
    joining = asyncio.create_task(world.fleet.call(0, MpiJoin(guest=rank, session=orders.SESSION), HANG_S))
    await entered.wait()
    for order in orders.passes(rank, orders.SESSION):
        before = world.refusals()
        with pytest.raises(CommandFailedError, match="MPI"):
            await world.fleet.call(0, order, HANG_S)
        assert world.refusals() > before, f"{shown(order, 500)} was not noted"
        assert not joining.done()
    assert {sample.guest: sample.state for sample in await world.guests()}[rank] != "running"
    joining.cancel()
    await asyncio.gather(joining, return_exceptions=True)
    for session in (orders.SESSION, "f" * 16):
        before = world.refusals()
        with pytest.raises(CommandFailedError, match="has joined its MPI job already"):
            await world.fleet.call(0, MpiJoin(guest=rank, session=session), HANG_S)
        assert world.refusals() > before
    await world.fleet.call(0, Stop(guest=rank), HANG_S)


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack, and the minimum number of acts by party and kind that the lab's operator then sees."""

    play: Callable[[World], Awaitable[None]]
    seen: Mapping[tuple[str, ActKind], int]


DENIED, REFUSED = ("n1", ActKind.DENIED_PUBLISH), ("n2", ActKind.REFUSED_COMMAND)
SPEC = orders.spec_of("dfrs-f", 64)
ATTACKS = (
    Attack(forge_topics_of_others, {DENIED: 5, ("n1", ActKind.FALSE_REPORT): 3}),
    Attack(command_with_a_stolen_token, {DENIED: 2}),
    Attack(take_the_lease, {DENIED: 10}),
    Attack(listen_to_everything, {("n1", ActKind.FOREIGN_SUBSCRIPTION): 4}),
    Attack(forge_replies, {DENIED: 2 * FORGED, ("n1", ActKind.FALSE_REPORT): FORGED, ("n1", ActKind.BAD_MESSAGE): 1}),
    Attack(command_without_the_live_lease, {REFUSED: 4}),
    Attack(replay_a_command, {REFUSED: 6}),
    Attack(lead_out_of_its_folders, {REFUSED: 9}),
    Attack(migrate_to_what_is_no_node, {REFUSED: len(orders.migrations("dfrs-a")) - 1}),
    Attack(adopt_what_never_arrived, {REFUSED: len(orders.adoptions(SPEC)) - 1}),
    Attack(join_what_is_no_rank, {REFUSED: len(orders.joins("dfrs-a"))}),
    Attack(let_a_rank_pass_by_lies, {REFUSED: len(orders.passes("dfrs-m", orders.SESSION)) + 2}),
    Attack(run_other_programs_natively, {REFUSED: len(orders.natives(SPEC))}),
    Attack(start_what_makes_no_sense, {REFUSED: len(orders.starts(SPEC))}),
    Attack(send_monsters, {REFUSED: 6}),
    Attack(send_noise, {REFUSED: MESSAGES // 4, DENIED: MESSAGES // 4}),
)


def attack_name(attack: Attack) -> str:
    return attack.play.__name__


def play(attack: Attack, doors: Doors, folder: Path, driver: Driver, memory_mib: int) -> None:
    """Attack an agent with a driver: the attack has no effect, the agent keeps running, and the attack is detected."""

    async def main() -> tuple[Counter[tuple[str, ActKind]], World]:
        async with world(doors, folder, driver, memory_mib) as lab:
            before = lab.acts()
            await attack.play(lab)
        return before, lab

    before, lab = asyncio.run(main())
    for key, least in attack.seen.items():
        wait_until(lambda key=key, least=least: lab.acts()[key] - before[key] >= least, f"{least} lines of {key}")
