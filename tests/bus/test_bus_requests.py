"""Commands and their replies, over a bus that loses the messages that the test selects, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bus.bus_worlds import KINDS, VirtualLoop, run, world
from support.bus.command_lab import COMMANDS, REPLIES, Lab, Node, Stubborn
from support.live import HANG_S

from testbed.bus.answers import AnswerJournal
from testbed.bus.messages import (
    AnyAction,
    Calibrate,
    Cancel,
    Command,
    Hold,
    ListGuests,
    Ping,
    Reply,
    Stop,
    decode,
    encode,
)
from testbed.bus.protocol import FullError
from testbed.bus.requests import CommandFailedError, DeadlineError, NoAnswerError, Requester
from testbed.bus.responder import MOST_PENDING_BYTES, MOST_PENDING_REPLIES, Responder
from testbed.bus.suspicious_acts import ActKind


def virtually(scenario: Callable[[], Awaitable[None]]) -> None:
    async def work() -> None:
        await scenario()

    run(work(), VirtualLoop)


def elapsed_s() -> float:
    return asyncio.get_running_loop().time()


def test_a_command_is_acknowledged_done_and_answered() -> None:
    async def scenario() -> None:
        lab = Lab()
        async with lab.agent(), lab.controller() as requester:
            reply = await requester.call("n1", Calibrate(cpu_s=5), deadline_s=8)
            assert (reply.status, reply.result, reply.node) == ("done", {"units_per_s": 10.0}, "n1")
            assert reply.elapsed_s == pytest.approx(5)
            assert elapsed_s() == pytest.approx(5)
            assert lab.statuses() == ["accepted", "done"]
            assert decode(Command, lab.commands.payloads[0]).lease == "token"

    virtually(scenario)


def test_commands_run_side_by_side() -> None:
    async def scenario() -> None:
        lab = Lab()
        async with lab.agent(), lab.controller() as requester, asyncio.TaskGroup() as group:
            for cpu_s in (3, 1, 2):
                group.create_task(requester.call("n1", Calibrate(cpu_s=cpu_s), deadline_s=8))
        assert lab.node.log == ["begin 3", "begin 1", "begin 2", "end 1", "end 2", "end 3"]

    virtually(scenario)


def test_failures_are_told_in_the_words_of_the_driver(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        lab = Lab()
        async with lab.agent(), lab.controller() as requester:
            with pytest.raises(CommandFailedError, match=r"^n1: stop: failed: no guest g7$") as caught:
                await requester.call("n1", Stop(guest="g7"), deadline_s=8)
            assert caught.value.reply is not None
            assert caught.value.reply.status == "failed"
            with pytest.raises(CommandFailedError, match="internal error: ZeroDivisionError: a mistake in the driver"):
                await requester.call("n1", ListGuests(), deadline_s=8)
            with pytest.raises(CommandFailedError, match="no plain data"):
                await requester.call("n1", Hold(guest="g"), deadline_s=8)
            assert (await requester.call("n1", Ping(), deadline_s=8)).status == "done"

    with caplog.at_level(logging.ERROR):
        virtually(scenario)
    assert [record.exc_info is not None for record in caplog.records] == [True]


def test_a_lost_acknowledgement_or_command_is_sent_again_and_done_once() -> None:
    async def scenario() -> None:
        to_lose = [COMMANDS, REPLIES, REPLIES]

        def loses(topic: str, payload: bytes) -> bool:
            if topic in to_lose:
                to_lose.remove(topic)
                return True
            return False

        lab = Lab(loses)
        async with lab.agent(), lab.controller(ack_timeout_s=2.0) as requester:
            reply = await requester.call("n1", Calibrate(cpu_s=9), deadline_s=20)
            assert reply.status == "done"
            assert to_lose == []
            assert lab.statuses() == ["accepted", "done"]
            assert lab.node.log == ["begin 9", "end 9"]
            assert elapsed_s() == pytest.approx(2 + 9)
            assert len({decode(Command, payload).id for payload in lab.commands.payloads}) == 1

    virtually(scenario)


def test_a_lost_result_is_asked_for_again() -> None:
    async def scenario() -> None:
        finals: list[Reply] = []

        def loses(topic: str, payload: bytes) -> bool:
            if topic == REPLIES and decode(Reply, payload).final:
                finals.append(decode(Reply, payload))
                return len(finals) == 1
            return False

        lab = Lab(loses)
        async with lab.agent(), lab.controller(ask_again_s=10) as requester:
            reply = await requester.call("n1", Calibrate(cpu_s=5), deadline_s=300)
            assert elapsed_s() == pytest.approx(10)
            assert finals == [reply, reply]
            assert lab.node.log == ["begin 5", "end 5"]

    virtually(scenario)


def test_a_node_without_agent_does_not_answer() -> None:
    async def scenario() -> None:
        lab = Lab()
        async with lab.agent():
            pass  # the agent was connected, so the hub keeps commands for it
        async with lab.controller(ack_timeout_s=2, tries=3) as requester:
            with pytest.raises(NoAnswerError, match=r"n1: calibrate: no acknowledgement within 6 s, sent 3 times"):
                await requester.call("n1", Calibrate(cpu_s=50), deadline_s=100)
            assert elapsed_s() == pytest.approx(6)
            last = decode(Command, (await lab.commands.count(4))[-1])
            assert last.action == Cancel(command=decode(Command, lab.commands.payloads[0]).id)
            async with lab.agent():  # too late: the agent aborts the queued command at once
                await lab.replies.until(lambda _got: "cancelled" in lab.statuses())
            assert elapsed_s() == pytest.approx(6)
            assert "end 50" not in lab.node.log

    virtually(scenario)


def test_an_agent_that_dies_at_work_is_found_out_before_the_deadline() -> None:
    async def scenario() -> None:
        lab = Lab()
        async with lab.agent(), lab.controller(ack_timeout_s=2, tries=3, ask_again_s=10) as requester:
            calling = asyncio.create_task(requester.call("n1", Calibrate(cpu_s=500), deadline_s=1000))
            await lab.replies.count(1)
            lab.hub.drop("agent")
            with pytest.raises(NoAnswerError):
                await calling
            assert elapsed_s() == pytest.approx(10 + 3 * 2)

    virtually(scenario)


def test_a_controller_off_the_bus_takes_its_command_back() -> None:
    async def scenario() -> None:
        lab = Lab()
        async with lab.agent(), lab.controller(ack_timeout_s=2, tries=2) as requester:
            lab.hub.drop("controller")
            with pytest.raises(NoAnswerError):
                await requester.call("n1", Calibrate(cpu_s=1), deadline_s=5)
            lab.hub.resume("controller")
            await lab.replies.count(1)
            kinds = [type(decode(Command, payload).action) for payload in lab.commands.payloads]
            assert kinds == [Cancel]
            assert lab.node.log == []

    virtually(scenario)


def test_the_agent_gives_up_at_the_deadline() -> None:
    async def scenario() -> None:
        lab = Lab()
        async with lab.agent(), lab.controller() as requester:
            with pytest.raises(DeadlineError, match=r"n1: calibrate: expired: not done within 7 s") as caught:
                await requester.call("n1", Calibrate(cpu_s=60), deadline_s=7)
            assert caught.value.reply is not None
            assert caught.value.reply.elapsed_s == pytest.approx(7)
            assert elapsed_s() == pytest.approx(7)
            assert lab.node.log == ["begin 60", "cancelled 60"]

    virtually(scenario)


def test_an_agent_that_does_not_give_up_is_given_up() -> None:
    async def scenario() -> None:
        lab = Lab()
        lab.node = Stubborn()
        async with lab.agent(), lab.controller(ack_timeout_s=2, ask_again_s=5) as requester:
            with pytest.raises(DeadlineError, match="nor did the agent give up"):
                await requester.call("n1", Calibrate(cpu_s=60), deadline_s=7)
            assert elapsed_s() == pytest.approx(7 + 2)

    virtually(scenario)


def test_cancelling_the_caller_cancels_the_command() -> None:
    async def scenario() -> None:
        lab = Lab()
        async with lab.agent(), lab.controller() as requester:
            calling = asyncio.create_task(requester.call("n1", Calibrate(cpu_s=60), deadline_s=100))
            await lab.node.begun.wait()
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling
            await lab.replies.until(lambda _got: "cancelled" in lab.statuses())
            assert lab.node.log == ["begin 60", "cancelled 60"]
            assert elapsed_s() == 0

    virtually(scenario)


def test_closing_the_agent_answers_what_it_interrupts(tmp_path: Path) -> None:
    async def scenario() -> None:
        lab = Lab()
        async with lab.controller() as requester:
            with AnswerJournal(tmp_path / "replies.jsonl") as journal:
                async with lab.agent(journal):
                    calling = asyncio.create_task(requester.call("n1", Calibrate(cpu_s=60), deadline_s=100))
                    await lab.node.begun.wait()
            with pytest.raises(CommandFailedError, match="interrupted: the agent is ending"):
                await calling
            assert lab.node.log == ["begin 60", "cancelled 60"]

    virtually(scenario)


def test_without_the_lease_a_command_is_rejected_and_not_remembered() -> None:
    async def scenario() -> None:
        lab = Lab()
        async with lab.agent(), lab.controller() as requester:
            lab.node.refusal = "the lease is another's"
            with pytest.raises(CommandFailedError, match=r"rejected: the lease is another's \(not token\)"):
                await requester.call("n1", Calibrate(cpu_s=1), deadline_s=5)
            lab.node.refusal = None
            async with lab.hub.client("again") as bus:
                await bus.publish(COMMANDS, lab.commands.payloads[0])
            await lab.replies.count(3)
            assert lab.statuses() == ["rejected", "accepted", "done"]

    virtually(scenario)


def test_bad_commands_are_rejected_where_there_is_someone_to_tell(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        lab = Lab()
        async with lab.agent(), lab.controller(), lab.hub.client("other") as bus:
            for payload in (
                b"no record",
                b'{"v": 1, "reply_to": "%s"}' % REPLIES.encode(),
                b'{"v": 1, "id": "b1", "reply_to": "testbed/v1/lab/node/n1/command"}',
                b'{"v": 1, "id": "b2", "reply_to": "%s", "action": {"kind": "format-disk"}}' % REPLIES.encode(),
                b'{"v": 9, "id": "b3", "reply_to": "%s"}' % REPLIES.encode(),
                encode(Command(id="b4", lease="l", reply_to="testbed/v1/lab/lease", deadline_s=1, action=Ping())),
                encode(Command(id="ok", lease="l", reply_to=REPLIES, deadline_s=1, action=Ping())),
            ):
                await bus.publish(COMMANDS, payload)
            replies = [decode(Reply, payload) for payload in await lab.replies.count(4)]
            assert [(reply.id, reply.status) for reply in replies] == [
                ("b2", "rejected"),
                ("b3", "rejected"),
                ("ok", "accepted"),
                ("ok", "done"),
            ]
            assert "the controller has protocol 9 (release unknown), this agent protocol" in str(replies[1].error)

    virtually(scenario)
    first, rest = [record.getMessage() for record in caplog.records if record.name.startswith("testbed")]
    assert first.startswith("suspicious: n1: refused-command: bad record on ")
    assert rest.startswith("suspicious: n1: refused-command (6 times): "), "all of one second, in one line"


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.integers(0, 3)),
            st.tuples(st.just("cancel"), st.integers(0, 3)),
            st.tuples(st.just("wait"), st.integers(0, 4)),
        ),
        max_size=25,
    )
)
def test_whatever_is_sent_twice_is_done_at_most_once_and_answered_alike(plan: list[tuple[str, int]]) -> None:
    """Command `c<n>` takes `n` of at most 2.5 seconds; all final replies to it are equal, also to repeats."""

    async def scenario() -> None:
        lab = Lab()
        async with lab.agent(), lab.controller(), lab.hub.client("sender") as bus:
            for number, (step, which) in enumerate(plan):
                if step == "wait":
                    await asyncio.sleep(which)
                    continue
                action: AnyAction = Calibrate(cpu_s=which) if step == "send" else Cancel(command=f"c{which}")
                name = f"c{which}" if step == "send" else f"x{number}"
                command = Command(id=name, lease="l", reply_to=REPLIES, deadline_s=2.5, action=action)
                await bus.publish(COMMANDS, encode(command))
            await asyncio.sleep(10)
            first_is_cancel: dict[int, bool] = {}
            for step, which in plan:
                if step != "wait":
                    first_is_cancel.setdefault(which, step == "cancel")
            for which, cancelled in first_is_cancel.items():
                assert lab.node.log.count(f"begin {which}") <= (0 if cancelled else 1)
                finals = [
                    reply
                    for reply in map(decode_reply, lab.replies.payloads)
                    if reply.id == f"c{which}" and reply.final
                ]
                assert all(reply == finals[0] for reply in finals)
                if any(step == ("send", which) for step in plan):
                    assert finals[0].status in ({"cancelled"} if cancelled else {"done", "cancelled", "expired"})
                    assert (finals[0].status == "done") == (f"end {which}" in lab.node.log)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario())


def decode_reply(payload: bytes) -> Reply:
    return decode(Reply, payload)


def test_an_agent_started_again_repeats_its_answers(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"

    async def scenario() -> None:
        lab = Lab()
        async with lab.controller(), lab.hub.client("sender") as bus:
            done = Command(id="c1", lease="l", reply_to=REPLIES, deadline_s=9, action=Calibrate(cpu_s=1))
            cut = Command(id="c2", lease="l", reply_to=REPLIES, deadline_s=9, action=Calibrate(cpu_s=5))
            with AnswerJournal(path) as journal:
                async with lab.agent(journal):
                    await bus.publish(COMMANDS, encode(done))
                    await bus.publish(COMMANDS, encode(cut))
                    await asyncio.sleep(2)
                    at_the_crash = path.read_bytes()
            path.write_bytes(at_the_crash + b'{"v": 1, "id": "torn')
            lab.node.log.clear()
            lab.replies.got.clear()
            with AnswerJournal(path) as journal:
                async with lab.agent(journal):
                    await bus.publish(COMMANDS, encode(done))
                    await bus.publish(COMMANDS, encode(cut))
                    replies = [decode_reply(payload) for payload in await lab.replies.count(2)]
            assert [(reply.id, reply.status) for reply in replies] == [("c1", "done"), ("c2", "failed")]
            assert replies[0].result == {"units_per_s": 2.0}
            assert replies[1].error == "interrupted: the agent was restarted"
            assert lab.node.log == []

    virtually(scenario)
    with AnswerJournal(path) as journal:
        assert journal.get("c1") is not None


def test_the_journal_keeps_the_last_answers_and_its_file_stays_small(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    with AnswerJournal(path, limit=10) as journal:
        for number in range(1000):
            journal.finish(Reply(id=f"c{number}", node="n1", status="done"))
        assert journal.get("c989") is None
        assert journal.get("c990") is not None
    for _ in range(2):
        with AnswerJournal(path, limit=10) as journal:
            assert [journal.get(f"c{number}") is not None for number in range(985, 1000)] == [False] * 5 + [True] * 10
        assert len(path.read_text().splitlines()) == 10


@pytest.mark.parametrize("kind", KINDS)
def test_commands_go_over_every_bus(kind: str) -> None:
    async def scenario() -> None:
        async with world(kind) as w, w.bus("controller") as near, w.bus("agent") as far:
            node = Node()
            async with (
                Responder(far, "lab", "n1", node.perform, node.refuse),
                Requester(near, "lab", "ctl", lambda: "token", tries=1000) as requester,
            ):
                calls = [requester.call("n1", Calibrate(cpu_s=n / 1000), deadline_s=HANG_S) for n in range(50)]
                assert [reply.result["units_per_s"] for reply in await asyncio.gather(*calls)] == [
                    n / 500 for n in range(50)
                ]
                calling = asyncio.create_task(requester.call("n1", Calibrate(cpu_s=3600), deadline_s=7200))
                await far.connected.wait()
                while "begin 3600" not in node.log:
                    node.begun.clear()
                    await node.begun.wait()
                await w.cut("agent")
                await w.mend("agent")
                calling.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await calling
                assert (await requester.call("n1", Ping(), deadline_s=HANG_S)).status == "done"
                assert node.log[-1] == "cancelled 3600"

    run(scenario())


def test_a_round_trip_is_measured_to_the_first_word_of_the_agent() -> None:
    async def scenario() -> None:
        lab, trips = Lab(), []
        async with lab.agent(), lab.controller() as requester:
            requester.on_round_trip = lambda node, seconds: trips.append((node, seconds))
            await requester.call("n1", Calibrate(cpu_s=30.0), 60)
            with pytest.raises(CommandFailedError):
                await requester.call("n1", Stop(guest="x"), 60)
        assert trips == [("n1", 0.0), ("n1", 0.0)]  # not the 30 s of the command

    virtually(scenario)


def test_a_command_that_was_sent_again_measures_nothing() -> None:
    async def scenario() -> None:
        lost: list[bytes] = []

        def loses(topic: str, payload: bytes) -> bool:
            if topic == REPLIES and len(lost) < 2:  # the acknowledgement and the result of the first attempt
                lost.append(payload)
                return True
            return False

        lab, trips = Lab(loses), []
        async with lab.agent(), lab.controller(ack_timeout_s=2.0) as requester:
            requester.on_round_trip = lambda node, seconds: trips.append((node, seconds))
            assert (await requester.call("n1", Ping(), 60)).status == "done"
            assert (elapsed_s(), len(lost), trips) == (2.0, 2, [])
            await requester.call("n1", Ping(), 60)
        assert trips == [("n1", 0.0)]

    virtually(scenario)


def test_replies_count_only_from_the_node_that_was_asked_and_each_has_a_quota() -> None:
    async def scenario() -> None:
        lab = Lab()
        told: Counter[tuple[str, ActKind]] = Counter()
        async with lab.agent(), lab.controller() as requester, lab.hub.client("thief") as thief:
            requester.on_bad_reply = lambda node, kind, _text: told.update([(node, kind)])
            asking = asyncio.create_task(requester.call("n1", Calibrate(cpu_s=5), deadline_s=8))
            command = decode(Command, (await lab.commands.count(1))[0])
            assert command.reply_to == REPLIES
            other = REPLIES.replace("n1", "n2")
            for node in ("n1", "n2"):  # n2 has received no command
                await thief.publish(other, encode(Reply(id=command.id, node=node, status="failed", error="forged")))
            await thief.publish(REPLIES, encode(Reply(id=command.id, node="n2", status="failed", error="forged")))
            for _ in range(300):
                await thief.publish(other, b"[" * 100_000)
            assert (await asking).status == "done"
            assert told["n1", ActKind.FALSE_REPORT] == 1
            assert told["n2", ActKind.BAD_MESSAGE] == 202, "all of the 302 beyond the first hundred"
            for _ in range(3000):
                await thief.publish(REPLIES, b"x")
            await requester.call("n1", Ping(), deadline_s=8)
            assert told["n1", ActKind.FLOOD] > 0
            assert elapsed_s() < 60

    virtually(scenario)


class Stalled:
    """A bus that accepts messages and sends none of them to the broker until it is `free`, or that refuses them."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.party = ""
        self.free = asyncio.Event()
        self.waiting_bytes = 0
        self.most_waiting = (0, 0)
        self.sent: list[Reply] = []
        self._waiting = 0
        self._refuses = refuses
        self.take: Callable[[str, bytes], Awaitable[None]] | None = None

    async def publish(self, topic: str, payload: bytes, qos: int = 1, *, retain: bool = False) -> None:
        if self._refuses and not self.free.is_set():
            raise FullError(f"{topic}: 10000 messages wait for the broker already: this one is refused")
        self._waiting, self.waiting_bytes = self._waiting + 1, self.waiting_bytes + len(payload)
        self.most_waiting = max(self.most_waiting[0], self._waiting), max(self.most_waiting[1], self.waiting_bytes)
        await self.free.wait()
        self._waiting, self.waiting_bytes = self._waiting - 1, self.waiting_bytes - len(payload)
        self.sent.append(decode_reply(payload))

    async def subscribe(self, pattern: str, handler: Callable[[str, bytes], Awaitable[None]], qos: int = 1) -> None:
        self.take = handler


def asked(number: int, action: AnyAction | None = None) -> bytes:
    command = Command(id=f"c{number}", lease="token", reply_to=REPLIES, deadline_s=8, action=action or Ping())
    return encode(command)


@pytest.mark.parametrize("refuses", [False, True])
def test_replies_that_wait_for_the_broker_are_bounded_and_what_is_beyond_is_counted(
    caplog: pytest.LogCaptureFixture, refuses: bool
) -> None:
    async def scenario() -> None:
        bus, node = Stalled(refuses=refuses), Node()
        async with Responder(bus, "lab", "n1", node.perform, node.refuse) as responder:
            assert bus.take is not None
            for number in range(2500):
                await bus.take(COMMANDS, asked(number))
                await asyncio.sleep(0)
            await asyncio.sleep(1)
            assert len(responder._sending) <= MOST_PENDING_REPLIES
            assert responder.lost_replies == 5000 - (0 if refuses else MOST_PENDING_REPLIES)
            bus.free.set()
            await asyncio.sleep(1)
            bus.sent.clear()
            await bus.take(COMMANDS, asked(2499))
            await asyncio.sleep(1)
            assert [(reply.id, reply.status) for reply in bus.sent] == [("c2499", "done")], "a repeated request"
            lost = [line for line in caplog.messages if "lost" in line]
            assert len(lost) <= 13, "one per doubling of their number"

    virtually(scenario)


def test_large_replies_that_wait_are_bounded_by_their_bytes() -> None:
    async def scenario() -> None:
        bus = Stalled()

        async def perform(action: AnyAction) -> dict[str, object]:
            del action
            return {"text": "x" * 900_000}

        async with Responder(bus, "lab", "n1", perform, Node().refuse) as responder:
            assert bus.take is not None
            for number in range(100):
                await bus.take(COMMANDS, asked(number))
                await asyncio.sleep(1)
            assert bus.most_waiting[1] <= MOST_PENDING_BYTES
            assert responder.lost_replies > 0
            bus.free.set()
            await asyncio.sleep(1)
            assert responder._pending_bytes == 0
            assert len(responder._sending) == 0

    virtually(scenario)
