"""The program's end of the control channel, and the agent's orders so far."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from dataclasses import dataclass

from node_agent.guests.channel import VERSION, ChannelError, Decoder, Message, encode
from node_agent.programs.task import Task

ORPHAN_EXIT_CODE = 3
_CALL_EVERY_S = 0.02  # while parked
_CALLS = 6000  # two minutes of its own time: time as an image on a disk does not count


@dataclass(frozen=True, slots=True)
class SaveOrder:
    """Write the image once `at` iterations are done."""

    at: int
    path: str
    since_s: float


class Control:
    """Exchanges messages with the agent; `held` and `save` are its orders. A closed channel ends the process at once.

    `anew` is set once the program has reconnected after `park`, perhaps on another machine with a clock of its own.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = self._call()
        self._decoder = Decoder()
        self._early: Message | None = None
        self._answered = True
        self.at = 0  # the point where the program can stop
        self.held = True  # until the first `release`
        self.save: SaveOrder | None = None
        self.anew = False
        self._ready: dict[str, object] = {}
        self.say("hello", v=VERSION, pid=os.getpid())

    def _call(self) -> socket.socket:
        found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            found.connect(self._path)
        except OSError:
            found.close()
            raise
        return found

    def say(self, kind: str, **fields: object) -> None:
        """Send one message."""
        try:
            self._socket.sendall(encode(kind, **fields))
        except OSError:
            os._exit(ORPHAN_EXIT_CODE)

    def ready(self, **fields: object) -> None:
        """Report that the memory is allocated; sent again after the program was parked."""
        self._ready = fields
        self.say("ready", **fields)

    def receive_task(self) -> tuple[Task, str | None]:
        """Wait for the task; return it with the path of its image, or None."""
        while self._early is None:
            self.wait(None)
        return Task.from_spec(self._early.fields["spec"]), self._early.fields["image"]

    def poll(self) -> None:
        """Take the orders that have arrived, without waiting; 1 µs when there are none."""
        try:
            data = self._socket.recv(65536, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            os._exit(ORPHAN_EXIT_CODE)  # neither an agent nor its keeper is left that could use the work
        for message in self._decoder.feed(data):
            if isinstance(message, ChannelError):
                raise message
            self._obey(message)

    def wait(self, timeout_s: float | None) -> None:
        """Wait for an order, at most so long."""
        select.select([self._socket], [], [], timeout_s)
        self.poll()

    def answer_hold(self) -> None:
        """Send `held` if a hold was ordered and not answered yet."""
        if self.held and not self._answered:
            self._answered = True
            self.say("held", at=self.at)

    def _obey(self, message: Message) -> None:
        match message.kind:
            case "task":
                self._early = message
                if self._ready:
                    self.say("ready", **self._ready)
            case "hold":
                self.held, self._answered, self.save = True, False, None
            case "release":
                self.held, self._answered, self.save = False, True, None
                self.say("released", at=self.at)
            case "save":
                self.save = SaveOrder(message.fields["at"], message.fields["path"], time.monotonic())
            case "park" if self.held:
                self._park()
            case other:
                raise ChannelError(f"{other} is no message for a program")

    def _park(self) -> None:
        """Close the channel and reconnect; between two attempts nothing ties this process to another one."""
        self._socket.close()
        for _ in range(_CALLS):
            time.sleep(_CALL_EVERY_S)  # polled: a watch on the socket's folder would tie the process to this machine
            with contextlib.suppress(OSError):
                self._socket = self._call()
                break
        else:
            os._exit(ORPHAN_EXIT_CODE)
        self._decoder = Decoder()
        self.anew = True
        self.say("hello", v=VERSION, pid=os.getpid())
