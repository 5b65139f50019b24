"""The agent's end of a program's control channel, whose messages outlive an agent that is killed."""

from __future__ import annotations

import asyncio
import socket

import pytest

from node_agent.drivers.procs.channel import Channel
from node_agent.guests.channel import encode

MESSAGE = encode("error", message="x" * 1000)
MANY = 100  # more than an agent reads in one call


async def hear_once(messages: bytes) -> tuple[bytes, bytes]:
    """Return the messages that an agent reads first, and those that stay in the socket if the agent is then killed."""
    ours, theirs = socket.socketpair()
    rest = ours.dup()
    loop = asyncio.get_running_loop()
    heard: asyncio.Future[bytes] = loop.create_future()

    def hear(data: bytes) -> None:
        loop.remove_reader(ours)
        heard.set_result(data)

    channel = Channel(ours, hear, lambda: None)
    with theirs, rest:
        theirs.sendall(messages)
        theirs.shutdown(socket.SHUT_WR)
        channel.start()
        first = await heard
        channel.close()
        left = b""
        while data := rest.recv(1 << 20):
            left += data
    return first, left


@pytest.mark.parametrize("count", [1, MANY])
def test_messages_are_taken_whole(count: int) -> None:
    first, left = asyncio.run(hear_once(MESSAGE * count))
    assert first + left == MESSAGE * count
    assert first.endswith(b"\n")
    assert (left == b"") == (count == 1)


def test_a_part_of_a_message_is_taken_as_it_comes() -> None:
    assert asyncio.run(hear_once(MESSAGE[:10])) == (MESSAGE[:10], b"")


def test_an_agent_that_is_killed_first_has_taken_nothing() -> None:
    async def work() -> None:
        ours, theirs = socket.socketpair()
        rest = ours.dup()
        closed = asyncio.get_running_loop().create_future()

        def hear(_data: bytes) -> None:
            channel.close()
            closed.set_result(None)

        channel = Channel(ours, hear, lambda: None)
        with theirs, rest:
            theirs.sendall(MESSAGE)
            channel.start()
            await closed
            assert rest.recv(len(MESSAGE)) == MESSAGE

    asyncio.run(work())
