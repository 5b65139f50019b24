"""The host's end of a guest's control channel; the test plays the guest's end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest
from support.agent.fake_guest import Answer, FakeGuest, obey
from support.live import HANG_S

from node_agent.drivers.protocol import DriverError
from node_agent.drivers.virt import channel as channel_module
from node_agent.drivers.virt.channel import MOST_UNSENT_BYTES, GuestChannel
from node_agent.guests.wire import Frame, repeated


@pytest.fixture(autouse=True)
def _no_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise timeouts, so that orders are repeated only in tests of that, and not on a machine that pauses."""
    monkeypatch.setattr(channel_module, "REPEAT_AFTER_S", HANG_S)


def with_guest(tmp_path: Path, answer: Answer, play: Callable[[FakeGuest, GuestChannel, list[Frame]], object]) -> None:
    async def main() -> None:
        heard: list[Frame] = []
        async with FakeGuest(tmp_path / "ctl", answer).open() as guest:
            channel = GuestChannel("g", heard.append)
            try:
                async with asyncio.timeout(HANG_S):
                    await play(guest, channel, heard)  # type: ignore[misc]  # a coroutine function
            finally:
                channel.detach()

    asyncio.run(main())


def test_an_order_that_is_lost_is_repeated_with_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(channel_module, "REPEAT_AFTER_S", 0.02)

    def deaf_at_first(guest: FakeGuest, frame: Frame) -> None:
        if sum(order.kind == frame.kind for order in guest.orders) >= 3:
            obey(guest, frame)

    async def play(guest: FakeGuest, channel: GuestChannel, heard: list[Frame]) -> None:
        await channel.attach(guest.path, HANG_S)
        assert (await channel.order("run", repeated("arg", ["/bin/x", "y z"]), HANG_S)).count("pid") == 4
        runs = [order for order in guest.orders if order.kind == "run"]
        assert len(runs) >= 3  # more, if its answer was late
        assert len({order.count("id") for order in runs}) == 1
        assert runs[0].fields["arg"] == ("/bin/x", "y z")
        assert runs[0].count("id") > guest.orders[0].count("id")

    with_guest(tmp_path, deaf_at_first, play)


class Deaf:
    """A guest's socket that accepts one connection after the other, and reads nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listener = socket.socket(socket.AF_UNIX)
        self._hosts: list[socket.socket] = []

    def __enter__(self) -> Self:
        self._listener.bind(str(self.path))
        self._listener.listen(100)
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._listener, *self._hosts):
            each.close()


def test_orders_to_a_guest_that_reads_nothing_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(channel_module, "REPEAT_AFTER_S", 0.001)
    most = 0

    async def main() -> None:
        nonlocal most
        with Deaf(tmp_path / "ctl") as guest:
            channel = GuestChannel("g", lambda _frame: None)
            await channel._open(guest.path, asyncio.get_running_loop().time() + HANG_S)
            writer = channel._writer
            assert writer is not None
            write = writer.write

            def watched(data: bytes) -> None:
                nonlocal most
                write(data)
                most = max(most, writer.unsent_bytes)

            monkeypatch.setattr(writer, "write", watched)
            for _ in range(100):
                with pytest.raises(DriverError, match=r"guest g did not answer run within"):
                    await channel.order("run", [("arg", "/bin/x"), ("arg", "y" * 15_000)], 0.02)
            assert channel.attached
            assert 0 < most <= MOST_UNSENT_BYTES
            channel.detach()
            await asyncio.sleep(0)
            assert writer.unsent_bytes == 0, "unread data keeps no socket open"

    asyncio.run(main())


def test_an_attach_without_an_answer_opens_the_host_s_end_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A port that QEMU throttles accepts orders and returns nothing, until the host closes the connection."""
    monkeypatch.setattr(channel_module, "REOPEN_AFTER_S", 0.02)

    def held_back(guest: FakeGuest, frame: Frame) -> None:
        if guest.hosts >= 3:
            obey(guest, frame)
            guest.say("out", ("seq", 1), ("pid", 1), ("text", "line 1"))

    async def play(guest: FakeGuest, channel: GuestChannel, heard: list[Frame]) -> None:
        await channel.attach(guest.path, HANG_S)
        await channel.order("go", [], HANG_S)
        ids = [order.count("id") for order in guest.orders if order.kind == "attach"]
        assert len(ids) >= 3
        assert ids == sorted(set(ids))  # each order is separate: the guest reports everything again after the answer
        assert [frame.count("seq") for frame in heard] == [1]

    with_guest(tmp_path, held_back, play)


def test_a_guest_that_never_answers_attach_is_told_with_the_whole_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(channel_module, "REOPEN_AFTER_S", 0.02)

    async def play(guest: FakeGuest, channel: GuestChannel, heard: list[Frame]) -> None:
        with pytest.raises(DriverError, match=r"did not answer attach within 0\.2 s"):
            await channel.attach(guest.path, 0.2)
        assert not channel.attached

    with_guest(tmp_path, lambda _guest, _frame: None, play)


def test_a_guest_that_refuses_attach_is_not_asked_again(tmp_path: Path):
    def refuse(guest: FakeGuest, frame: Frame) -> None:
        guest.say("refused", ("id", frame.text("id")), ("error", "after: expected a count"))

    async def play(guest: FakeGuest, channel: GuestChannel, heard: list[Frame]) -> None:
        with pytest.raises(DriverError, match="refused attach: after"):
            await channel.attach(guest.path, HANG_S)
        assert len(guest.orders) == guest.hosts == 1

    with_guest(tmp_path, refuse, play)


def test_what_a_guest_tells_twice_is_heard_once(tmp_path: Path):
    def tell(guest: FakeGuest, frame: Frame) -> None:
        obey(guest, frame)
        if frame.kind != "attach":
            return
        after = frame.count("after")
        guest.raw(b"d of a frame that was cut\n")
        for seq in range(after + 1, 4):
            guest.say("out", ("seq", seq), ("pid", 1), ("text", f"line {seq}"))
        guest.say("out", ("seq", 2), ("pid", 1), ("text", "line 2"))
        guest.say("beat", ("units", 5), ("mono_ns", 1))
        guest.say("exit", ("seq", 4 + after), ("pid", 1), ("status", 0))

    async def play(guest: FakeGuest, channel: GuestChannel, heard: list[Frame]) -> None:
        await channel.attach(guest.path, HANG_S)
        await channel.order("go", [], HANG_S)  # earlier reports arrive before the answer to this order
        await channel.attach(guest.path, HANG_S)  # as after a restore: the host requests only new reports
        assert guest.orders[-1].count("after") == 4
        await channel.order("go", [], HANG_S)
        assert [frame.count("seq") for frame in heard if frame.kind == "exit"] == [4, 8]
        assert [frame.count("seq") for frame in heard if frame.kind == "out"] == [1, 2, 3]

    with_guest(tmp_path, tell, play)


def test_what_a_guest_tells_while_the_host_stands_still_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An answer counts even if it arrives when the repeat of its order is due: later frames are sent only once."""
    repeat_after_s = 0.01
    monkeypatch.setattr(channel_module, "REPEAT_AFTER_S", repeat_after_s)

    def tell(guest: FakeGuest, frame: Frame) -> None:
        obey(guest, frame)
        if len(guest.orders) == 1:
            guest.say("done", ("seq", 1), ("units", 4))
            guest.say("progress", ("units", 4), ("mono_ns", 1))
            due_s = asyncio.get_running_loop().time() + repeat_after_s
            while asyncio.get_running_loop().time() <= due_s:  # blocks the loop until then
                pass

    async def play(guest: FakeGuest, channel: GuestChannel, heard: list[Frame]) -> None:
        await channel.attach(guest.path, HANG_S)
        monkeypatch.setattr(channel_module, "REPEAT_AFTER_S", HANG_S)
        await channel.order("go", [], HANG_S)  # earlier reports arrive before the answer to this order
        assert [frame.kind for frame in heard] == ["done", "progress"]

    with_guest(tmp_path, tell, play)


def test_what_was_meant_for_an_earlier_host_is_not_heard(tmp_path: Path):
    def tell(guest: FakeGuest, frame: Frame) -> None:
        if frame.kind == "attach":
            guest.say("out", ("seq", 3), ("pid", 1), ("text", "line 3"))
            guest.say("progress", ("units", 4), ("mono_ns", 1))
        obey(guest, frame)
        if frame.kind == "attach":
            for seq in range(frame.count("after") + 1, 4):
                guest.say("out", ("seq", seq), ("pid", 1), ("text", f"line {seq}"))

    async def play(guest: FakeGuest, channel: GuestChannel, heard: list[Frame]) -> None:
        for _ in range(2):
            await channel.attach(guest.path, HANG_S)
            await channel.order("go", [], HANG_S)
        assert [(frame.kind, frame.count("seq")) for frame in heard] == [("out", 1), ("out", 2), ("out", 3)]

    with_guest(tmp_path, tell, play)


def test_a_guest_from_a_node_whose_clock_was_ahead_is_caught_up_with(tmp_path: Path):
    ahead = 10**14

    def of_the_future(guest: FakeGuest, frame: Frame) -> None:
        if frame.count("id") > ahead:
            obey(guest, frame)
        else:
            guest.say("refused", ("id", frame.text("id")), ("error", "older"), ("last", ahead))

    async def play(guest: FakeGuest, channel: GuestChannel, heard: list[Frame]) -> None:
        await channel.attach(guest.path, HANG_S)
        await channel.order("go", [], HANG_S)
        assert [(order.kind, order.count("id") > ahead) for order in guest.orders] == [
            ("attach", False), ("attach", True), ("go", True),
        ]  # fmt: skip

    with_guest(tmp_path, of_the_future, play)


def test_a_guest_that_refuses_or_says_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(channel_module, "REPEAT_AFTER_S", 0.02)

    def refuse(guest: FakeGuest, frame: Frame) -> None:
        if frame.kind == "attach":
            obey(guest, frame)
        elif frame.kind == "run":
            guest.say("refused", ("id", frame.text("id")), ("error", "no such file"))

    async def play(guest: FakeGuest, channel: GuestChannel, heard: list[Frame]) -> None:
        await channel.attach(guest.path, HANG_S)
        with pytest.raises(DriverError, match="refused run: no such file"):
            await channel.order("run", [], HANG_S)
        with pytest.raises(DriverError, match="did not answer go"):
            await channel.order("go", [], 0.1)
        guest.hang_up()
        with pytest.raises(DriverError, match="channel"):
            await channel.order("go", [], HANG_S)
        assert not channel.attached

    with_guest(tmp_path, refuse, play)


def test_a_socket_that_never_comes_is_an_error(tmp_path: Path):
    async def main() -> None:
        with pytest.raises(DriverError, match="nowhere"):
            await GuestChannel("g", lambda _frame: None).attach(tmp_path / "nowhere", 0.1)

    asyncio.run(main())
