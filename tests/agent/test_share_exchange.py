"""The exchange of shares between agents: over a network that loses messages, and across the end of an agent."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.live import until

from node_agent.drivers.protocol import DriverError
from node_agent.share_exchange import FOLDER, Kept, ShareExchange
from testbed.bus.messages import Exchange, GuestSpec, ProgramSpec
from testbed.bus.protocol import Handler
from testbed.bus.telemetry import MOST_GIVERS, ExchangeCounts, GuestSample
from testbed.lab.virtual_time import run_in_virtual_time
from testbed.shares.formulas import shares_of
from testbed.shares.messages import Transfer, seal
from testbed.shares.node import BANK
from testbed.shares.state import Received

BOOKED = 0.3
ORDER = Exchange(
    mode="bank", secret="5" * 64, period_s=0.1, grant_s=0.1, nodes={"g0": "n0", "g1": "n1", "g2": "n2"}, bank="n0"
)


class Network:
    """Delivers messages to the existing agents; some are lost, some arrive twice."""

    def __init__(self, seed: int | None = None) -> None:
        self.handlers: dict[str, Handler] = {}
        self.sent: list[tuple[str, bytes]] = []
        self._random = None if seed is None else random.Random(seed)  # noqa: S311  # of a test

    async def subscribe(self, pattern: str, handler: Handler, qos: int = 1) -> None:
        del qos
        self.handlers[pattern] = handler

    async def publish(self, topic: str, payload: bytes, qos: int = 1, *, retain: bool = False) -> None:
        del qos, retain
        self.sent.append((topic, payload))
        times = 1 if self._random is None else self._random.choice((0, 1, 1, 2))
        for _ in range(times):
            if topic in self.handlers:
                await self.handlers[topic](topic, payload)


class Node:
    """One agent's exchange, and a guest with a given CPU use."""

    def __init__(self, number: int, folder: Path, uses_cores: float) -> None:
        self.guest, self.name = f"g{number}", f"n{number}"
        self.folder = folder / self.name
        self.folder.mkdir(exist_ok=True)
        self.uses_cores = uses_cores
        self.set: dict[str, float] = {}
        self.waits_s: tuple[float, ...] = ()
        self.units = 1
        self.guessed_waits_s: tuple[float, ...] = ()
        self.sampled = 0
        self.exchange = self.agent()

    def agent(self) -> ShareExchange:
        loop = asyncio.get_running_loop()
        return ShareExchange("lab", self.name, 1.0, self.folder, loop.time, self.samples, self.set_share)

    async def samples(self) -> Sequence[GuestSample]:
        cpu_s = self.uses_cores * asyncio.get_running_loop().time()
        self.sampled += 1
        return [
            GuestSample(
                guest=self.guest, state="running", cap_cores=1.0, cpu_s=cpu_s, rss_mib=1.0, read_mib=0.0,
                written_mib=0.0, units_done=self.units, units_mono_ns=1, waits_s=self.waits_s,
                guessed_waits_s=self.guessed_waits_s,
            )
        ]  # fmt: skip

    async def set_share(self, guest: str, cores: float) -> None:
        self.set[guest] = cores

    def spec(self) -> GuestSpec:
        return GuestSpec(
            guest=self.guest, run="r", job=1, task=int(self.guest[1:]), cpu_cores=1.0, memory_mib=64,
            program=ProgramSpec("patterns", 10, 1, 1), share_cores=BOOKED,
        )  # fmt: skip

    async def begin_work(self) -> None:
        """Let the guest report its first work unit, as the agent's telemetry sees it."""
        self.units = 1
        self.exchange.notice(await self.samples())

    def kept(self) -> Kept:
        return msgspec.json.decode((self.folder / FOLDER / "g0.json").read_bytes(), type=Kept)


class NodeOfTwo(Node):
    """A node whose agent also samples the guest of `other`."""

    def __init__(self, number: int, folder: Path, uses_cores: float, other: Node) -> None:
        super().__init__(number, folder, uses_cores)
        self.other = other

    async def samples(self) -> Sequence[GuestSample]:
        return [*await super().samples(), *await self.other.samples()]


@contextlib.asynccontextmanager
async def serving(network: Any, *nodes: Node) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(node.exchange.run(network)) for node in nodes]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def lab(tmp_path: Path, order: Exchange, *uses: float) -> list[Node]:
    nodes = [Node(number, tmp_path, cores) for number, cores in enumerate(uses)]
    for node in nodes:
        node.exchange.begin(node.spec(), order)
    return nodes


def total(nodes: Sequence[Node]) -> int:
    """Return the sum of the job's shares in the agents' files; a transfer that was taken counts at its receiver."""
    accounts = {name: state for node in nodes for name, state in node.kept().accounts.items()}
    found = sum(state.shares for state in accounts.values())
    for name, state in accounts.items():
        for target, sent in state.sent.items():
            last = accounts[target].received.get(name)
            taken = last is not None and last.number == sent.number and last.taken
            found += 0 if taken else sent.shares
    return found


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_what_one_guest_does_not_use_goes_to_the_one_that_is_short(tmp_path: Path, seed: int | None) -> None:
    async def scenario() -> None:
        nodes = lab(tmp_path, ORDER, 0.9, 0.1, 0.2)
        async with serving(Network(seed), *nodes):
            await until(lambda: nodes[0].set.get("g0", 0) > 0.55, "the shares of the others")
            await until(lambda: nodes[1].set.get("g1", 1) < 0.15, "the return of excess shares")
        assert total(nodes) == 3 * shares_of(BOOKED)

    asyncio.run(scenario())


def test_the_bank_grants_when_all_guests_have_reported_or_half_a_period_later(tmp_path: Path) -> None:
    """The first period of a guest ends without a measured use; in the second one all guests report."""

    async def scenario() -> None:
        nodes = lab(tmp_path, ORDER, 0.9, 0.1, 0.2)
        async with serving(Network(), *nodes):
            await asyncio.sleep(0.24)  # virtual time: just after the end of the second period
            assert nodes[0].set["g0"] == pytest.approx(0.3 + 0.2 + 0.1, abs=0.01)
        assert total(nodes) == 3 * shares_of(BOOKED)

    async def without_one() -> None:
        nodes = lab(tmp_path, ORDER, 0.9, 0.1, 0.2)
        nodes[1].units = 0  # it has not begun to work
        async with serving(Network(), *nodes):
            await asyncio.sleep(0.24)  # virtual time, as below: just before half a period more has passed
            assert nodes[0].set.get("g0", BOOKED) == pytest.approx(BOOKED)
            await asyncio.sleep(0.02)  # and just after that
            assert nodes[0].set["g0"] == pytest.approx(0.3 + 0.1, abs=0.01)

    run_in_virtual_time(scenario())
    run_in_virtual_time(without_one())


def test_a_guest_gives_to_those_that_it_waits_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        order = msgspec.structs.replace(ORDER, mode="distributed", bank="")
        nodes = lab(tmp_path, order, 0.3, 0.3, 0.1)
        async with serving(Network(), *nodes):
            waited = (0.0, 0.0, 0.0)

            def wait() -> bool:
                nonlocal waited
                waited = (waited[0], waited[1] + 1.0, waited[2])
                nodes[2].waits_s = waited
                return nodes[1].set.get("g1", 0) > BOOKED + 0.05

            await until(wait, "shares of the guest that waits")
        assert nodes[0].set["g0"] == pytest.approx(BOOKED), "no task waits for this one"
        assert total(nodes) == 3 * shares_of(BOOKED)

    asyncio.run(scenario())


def test_the_next_agent_goes_on_with_the_accounts_of_a_killed_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        network = Network(3)
        nodes = lab(tmp_path, ORDER, 0.9, 0.1, 0.2)
        async with serving(network, *nodes):
            await until(lambda: nodes[0].set.get("g0", 0) > 0.4, "the first shares of the others")
        for node in nodes:
            node.exchange = node.agent()
            node.exchange.take_over([node.spec()])
            node.set.clear()
        async with serving(network, *nodes):
            await until(lambda: nodes[0].set.get("g0", 0) > 0.55, "more of them")
        assert total(nodes) == 3 * shares_of(BOOKED)

    asyncio.run(scenario())


@pytest.mark.parametrize("waits", ["traffic", "layer"])
def test_a_guess_serves_where_the_order_asks_for_it_and_ranks_count_nothing(tmp_path: Path, waits: str) -> None:
    async def scenario() -> None:
        addresses = ("10.77.1.1/16", "10.77.1.2/16", "10.77.1.3/16")
        order = msgspec.structs.replace(ORDER, mode="distributed", bank="", waits=waits, addresses=addresses)
        nodes = lab(tmp_path, order, 0.3, 0.3, 0.1)
        asked: list[tuple[str, Sequence[str]]] = []

        async def guess(guest: str, where: Sequence[str]) -> None:
            asked.append((guest, where))
            if len(asked) == 1:
                raise DriverError("its tap is not there yet")
            nodes[2].guessed_waits_s = (0.0, 0.0, 0.0)

        nodes[2].exchange.guess = guess
        async with serving(Network(), *nodes):
            if waits == "layer":
                last = nodes[2].sampled + 5
                await until(lambda: nodes[2].sampled >= last, "five periods")
                assert asked == []
                return

            def wait() -> bool:
                nodes[2].guessed_waits_s = tuple(
                    each + (rank == 1) for rank, each in enumerate(nodes[2].guessed_waits_s)
                )
                return nodes[1].set.get("g1", 0) > BOOKED + 0.05

            await until(wait, "shares of the guest that waits")
        assert asked == [("g2", addresses)] * 2, "one repeat after the failure"
        assert total(nodes) == 3 * shares_of(BOOKED)

    asyncio.run(scenario())


def test_waits_of_before_the_agent_began_count_for_nothing(tmp_path: Path) -> None:
    """A virtual machine counts waits since its rank began, also across the end of an agent, a save and a restore."""

    async def scenario() -> None:
        order = msgspec.structs.replace(ORDER, mode="distributed", bank="")
        nodes = lab(tmp_path, order, 0.3, 0.3, 0.1)
        node = nodes[2]

        async def periods(count: int) -> None:
            last = node.sampled + count
            await until(lambda: node.sampled >= last, f"{count} periods")

        async with serving(Network(), *nodes):
            node.units, node.waits_s = 0, ()  # the agent has no report of the rank yet
            await periods(2)
            node.units, node.waits_s = 5, (0.0, 100.0, 0.0)
            await periods(3)
            node.waits_s = (0.0, 1.0, 0.0)  # the rank has started again
            await periods(3)
            assert node.kept().accounts["g2"].shares == shares_of(BOOKED)
            assert nodes[1].kept().accounts["g1"].shares == shares_of(BOOKED)
            node.waits_s = (0.0, 2.0, 0.0)
            await until(lambda: nodes[1].kept().accounts["g1"].shares > shares_of(BOOKED), "shares for a new wait")

    asyncio.run(scenario())


def test_a_period_is_never_shorter_than_it_should_be(tmp_path: Path) -> None:
    """An agent that was late must not sample its guests again at once: they would seem to use no CPU."""

    async def scenario() -> None:
        (node,) = lab(tmp_path, ORDER, 0.9)
        loop, looked_s = asyncio.get_running_loop(), []
        plain = node.samples

        async def late() -> Sequence[GuestSample]:
            found = await plain()
            looked_s.append(loop.time())
            if len(looked_s) == 2:
                await asyncio.sleep(2.5 * ORDER.period_s)  # speed: the machine pauses for some periods
            return found

        node.samples = late  # type: ignore[method-assign]
        node.exchange = node.agent()
        node.exchange.begin(node.spec(), ORDER)
        async with serving(Network(), node):
            await until(lambda: len(looked_s) == 5, "five periods")
        assert min(after - before for before, after in itertools.pairwise(looked_s)) > ORDER.period_s - 1e-3

    asyncio.run(scenario())


@pytest.mark.parametrize("begins_s", [0.2, 0.6, 2.9])
def test_the_first_period_of_a_job_begins_with_its_work(tmp_path: Path, begins_s: float) -> None:
    """A period that began with the account could end before there is a use to measure."""

    async def scenario() -> None:
        (node,) = lab(tmp_path, msgspec.structs.replace(ORDER, period_s=1.0), 0.1)
        node.units = 0
        async with serving(Network(), node):
            await asyncio.sleep(begins_s)  # virtual time, as below
            await node.begin_work()
            await asyncio.sleep(0.99)
            assert node.kept().accounts["g0"].shares == shares_of(BOOKED)
            await asyncio.sleep(0.02)
            assert node.kept().accounts["g0"].shares == pytest.approx(shares_of(0.1), abs=1)

    run_in_virtual_time(scenario())


@pytest.mark.parametrize(("later_s", "ends_s"), [(0.2, 1), (0.4, 1), (0.6, 2), (0.9, 2)])
def test_a_later_guest_of_the_node_is_measured_for_at_least_half_a_period(
    tmp_path: Path, later_s: float, ends_s: float
) -> None:
    """Its sample ends with a period of the job; a shorter one would be inaccurate."""

    async def scenario() -> None:
        order = msgspec.structs.replace(ORDER, period_s=1.0, nodes={"g0": "n0", "g1": "n0"})
        second = Node(1, tmp_path, 0.1)
        first = NodeOfTwo(0, tmp_path, 0.1, second)
        second.units, second.exchange = 0, first.exchange
        for node in (first, second):
            first.exchange.begin(node.spec(), order)
        async with serving(Network(), first):
            await first.begin_work()
            await asyncio.sleep(later_s)  # virtual time, as below
            await second.begin_work()
            await asyncio.sleep(ends_s - 0.01 - later_s)
            assert first.kept().accounts["g1"].shares == shares_of(BOOKED)
            await asyncio.sleep(0.02)
            assert first.kept().accounts["g1"].shares == pytest.approx(shares_of(0.1), abs=1)

    run_in_virtual_time(scenario())


def test_the_bank_grants_a_period_after_the_last_guest_has_begun_to_work(tmp_path: Path) -> None:
    """Guests start seconds after their accounts are opened. A grant in between would leave out the last ones."""

    async def scenario() -> None:
        nodes = lab(tmp_path, msgspec.structs.replace(ORDER, period_s=1.0, grant_s=1.0), 0.9, 0.1, 0.2)
        for node in nodes:
            node.units = 0
        async with serving(Network(), *nodes):
            await asyncio.sleep(2.7)  # virtual time, as below
            for node in reversed(nodes):
                await node.begin_work()
                await asyncio.sleep(0.2)
            await asyncio.sleep(0.79)  # a period after the last one began, less 0.01
            assert nodes[0].set.get("g0", BOOKED) == pytest.approx(BOOKED)
            await asyncio.sleep(0.02)
            assert nodes[0].set["g0"] == pytest.approx(0.3 + 0.2 + 0.1, abs=0.01)
        assert total(nodes) == 3 * shares_of(BOOKED)

    run_in_virtual_time(scenario())


def test_a_share_is_set_when_it_changes_and_again_if_that_failed(tmp_path: Path) -> None:
    """Setting a share takes writes and reads of control groups, which each message would cause for all guests."""

    async def scenario() -> None:
        (node,) = lab(tmp_path, ORDER, 0.9)
        calls: list[float] = []

        async def set_share(guest: str, cores: float) -> None:
            calls.append(cores)
            if len(calls) == 1:
                raise DriverError(f"guest {guest} is busy")

        node.set_share = set_share  # type: ignore[method-assign]
        node.exchange = node.agent()
        node.exchange.begin(node.spec(), ORDER)
        async with serving(Network(), node):
            await asyncio.sleep(20 * ORDER.period_s)
        assert calls == [pytest.approx(BOOKED)] * 2
        node.exchange.gone("g0")
        node.exchange.begin(node.spec(), ORDER)  # a new life of the guest, whose driver does not know the old one
        async with serving(Network(), node):
            await asyncio.sleep(5 * ORDER.period_s)
        assert len(calls) == 3

    run_in_virtual_time(scenario())


def test_accounts_end_with_their_guests_and_with_an_agent_that_finds_none(tmp_path: Path) -> None:
    async def scenario() -> None:
        nodes = lab(tmp_path, ORDER, 0.9, 0.1)
        async with serving(Network(), *nodes):
            await until(lambda: all((node.folder / FOLDER / "g0.json").exists() for node in nodes), "accounts")
            nodes[0].exchange.gone("g0")
            assert not (nodes[0].folder / FOLDER / "g0.json").exists()
            nodes[0].exchange.gone("g0")
        again = nodes[1].agent()
        again.take_over([])
        assert not (nodes[1].folder / FOLDER / "g0.json").exists()

    asyncio.run(scenario())


def test_a_message_without_the_secret_of_the_job_changes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        network = Network()
        nodes = lab(tmp_path, ORDER, 0.9, 0.9, 0.9)
        forged = Transfer(source="g1", target="g0", number=1, shares=shares_of(0.4))
        async with serving(network, *nodes):
            topic = "testbed/v1/lab/node/n0/exchange"
            await until(lambda: topic in network.handlers, "the subscription of n0")
            for secret in (b"", bytes.fromhex("6" * 64)):
                await network.handlers[topic](topic, seal(secret, forged))
                await network.handlers[topic](topic, b"nonsense")
            sent = len(network.sent)
            await until(lambda: len(network.sent) > sent + 10, "some periods")
        assert nodes[0].kept().accounts["g0"].shares == shares_of(BOOKED)
        assert nodes[0].kept().accounts[BANK].shares == 0

    asyncio.run(scenario())


def test_an_order_for_a_guest_of_another_node_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(0, tmp_path, 0.5)
        with pytest.raises(DriverError, match="guest g0: its exchange names another node: expected n0"):
            node.exchange.begin(node.spec(), msgspec.structs.replace(ORDER, nodes={"g0": "n1"}))

    asyncio.run(scenario())


def test_telemetry_tells_who_has_taken_what_from_whom(tmp_path: Path) -> None:
    async def scenario() -> None:
        network = Network(4)
        nodes = lab(tmp_path, ORDER, 0.9, 0.1, 0.2)
        assert nodes[1].exchange.counts == ExchangeCounts(sent=0, received=0)
        async with serving(network, *nodes):
            await until(lambda: nodes[0].set.get("g0", 0) > 0.55, "the shares of the others")
        accounts = {node.guest: node.kept().accounts for node in nodes}
        found = {node.guest: node.exchange.told(await node.samples())[0] for node in nodes}
        bank = found["g0"].bank
        assert bank is not None
        assert bank.taken_cores.keys() == {"g1", "g2"}
        assert shares_of(bank.share_cores) == accounts["g0"][BANK].shares
        assert found["g0"].taken_cores == {BANK: pytest.approx(nodes[0].set["g0"] - BOOKED, abs=1e-6)}
        assert [found[guest].bank for guest in ("g1", "g2")] == [None, None], "the bank is at one node"

    asyncio.run(scenario())


def test_telemetry_goes_on_with_what_a_killed_agent_has_taken(tmp_path: Path) -> None:
    async def scenario() -> None:
        nodes = lab(tmp_path, ORDER, 0.9, 0.1, 0.2)
        async with serving(Network(), *nodes):
            await until(lambda: nodes[0].set.get("g0", 0) > 0.55, "the shares of the others")
        (before,) = nodes[0].exchange.told(await nodes[0].samples())
        nodes[0].exchange = nodes[0].agent()
        assert nodes[0].exchange.told(await nodes[0].samples())[0].bank is None, "the agent knows no job yet"
        nodes[0].exchange.take_over([nodes[0].spec()])
        (after,) = nodes[0].exchange.told(await nodes[0].samples())
        assert (after.taken_cores, after.bank) == (before.taken_cores, before.bank)

    asyncio.run(scenario())


def test_messages_to_and_from_other_nodes_are_counted(tmp_path: Path) -> None:
    async def scenario() -> None:
        network = Network()
        alone = Node(3, tmp_path, 0.5)
        assert alone.exchange.counts is None, "no guest here has exchanged shares"
        nodes = lab(tmp_path, ORDER, 0.9, 0.1, 0.2)
        async with serving(network, *nodes):
            await until(lambda: len(network.sent) > 20, "some periods")
        counts = [node.exchange.counts for node in nodes]
        assert sum(each.sent for each in counts if each) == len(network.sent)
        for node, each in zip(nodes, counts, strict=True):
            assert each is not None
            assert each.received == sum(f"/{node.name}/" in topic for topic, _ in network.sent)

    asyncio.run(scenario())


def test_a_sample_holds_the_greatest_givers_of_very_many(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(0, tmp_path, 0.5)
        node.exchange.begin(node.spec(), ORDER)
        account = node.exchange._jobs["g0"].node.accounts[BANK]
        account.state.received.update({f"x{number}": Received(1, True, number) for number in range(5000)})
        (sample,) = node.exchange.told(await node.samples())
        assert sample.bank is not None
        assert len(sample.bank.taken_cores) == MOST_GIVERS
        assert min(sample.bank.taken_cores.values()) == pytest.approx((5000 - MOST_GIVERS) / 1e6)
        assert msgspec.json.decode(msgspec.json.encode(sample), type=GuestSample) == sample

    asyncio.run(scenario())
