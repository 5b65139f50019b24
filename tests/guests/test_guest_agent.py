"""The guest agent and the host communicate, even through a channel that loses and tears messages."""

from __future__ import annotations

import fcntl
import signal
import socket
import struct
import termios
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.guests.guest_end import AgentAlone
from support.live import HANG_S, wait_until

from node_agent.guests import wire
from testbed.lab.guest_image.recipe import compile_program
from testbed.testing.accuracy import Window

ABSENT_S = 0.05  # interval at which an agent checks a port without a host
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\0\n"), max_size=40)


@pytest.fixture
def agent(programs, short_path):
    alone = AgentAlone(programs / "agent", short_path)
    yield alone
    alone.close()


class OddPort(AgentAlone):
    """An agent alone, with a port that shows rare behaviour of virtio ports, see odd_port.c."""

    def hang_up(self) -> None:
        (self.folder / "hangup").touch()

    def is_there(self) -> None:
        (self.folder / "hangup").unlink()

    def takes(self, most_bytes: int) -> None:
        """Limit the bytes that each write accepts."""
        (self.folder / "short").write_text(str(most_bytes))

    def refuses_after(self, room_bytes: int) -> None:
        """Let the port accept a number of further bytes, then none."""
        new = self.folder / "room.new"
        new.write_text(str(room_bytes))
        new.rename(self.folder / "room")

    def is_full(self) -> None:
        """Wait until the port is full."""
        wait_until(lambda: (self.folder / "room").read_text() == "0", "a port that is full")

    def takes_all(self, *, told: bool) -> None:
        """Let the full port accept everything again; with `told` the agent is woken for it."""
        if not told:
            (self.folder / "untold").touch()
        (self.folder / "room").unlink()

    def looks(self) -> int:
        """Return how often the agent has checked whether its port has a host."""
        file = self.folder / "looks"
        return file.stat().st_size if file.exists() else 0

    def has_taken_orders(self) -> None:
        """Wait until the agent has read all orders; it reads none while it has four unsent answers."""
        wait_until(lambda: not struct.unpack("i", fcntl.ioctl(self.host.end, termios.TIOCOUTQ, bytes(4)))[0], "orders")

    def has_looked(self) -> None:
        """Wait until the agent has checked its port again."""
        so_far = self.looks()
        wait_until(lambda: self.looks() >= so_far + 3, "looks at the port")


@pytest.fixture
def odd_port(programs, short_path):
    shim = str(Path(__file__).with_name("odd_port.c"))
    alone = OddPort(compile_program("agent", short_path, shim, "-Wl,--wrap=poll,--wrap=write"), short_path)
    yield alone
    alone.close()


@pytest.fixture(scope="module")
def lasting(programs, tmp_path_factory):
    alone = AgentAlone(programs / "agent", tmp_path_factory.mktemp("a"))
    yield alone
    alone.close()


class Program:
    """A program's end of the agent's socket."""

    def __init__(self, folder) -> None:
        self.end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.end.settimeout(HANG_S)
        self.end.connect(str(folder / "agent.sock"))

    def say(self, kind, *fields) -> None:
        self.end.send(wire.encode(kind, fields)[12:-1])


def store(folder, *words: int) -> None:
    """Write the first words of a program's shared file for the agent, without truncating it, because it is mapped."""
    with (folder / "progress").open("r+b") as file:
        file.write(struct.pack(f"<{len(words)}Q", *words))


def numbered(frames) -> list[int]:
    return [frame.count("seq") for frame in frames if "seq" in frame.fields and frame.kind != "attached"]


def test_attaching_tells_what_was_before_and_beats_from_then_on(agent, accuracy):
    host, window = agent.host, Window()
    assert host.order("run", ("arg", "/bin/echo"), ("arg", "a  b")).kind == "ok"
    assert not [f for f in host.frames if f.kind != "ok"]  # no host was attached
    answer = host.order("attach", ("after", 0))
    hello, out, end, first, second = (
        host.kind("hello"), host.kind("out"), host.kind("exit"), host.kind("beat"),
        host.until(lambda f: f.kind == "beat" and f != host.kind("beat")),
    )  # fmt: skip
    assert hello.text("boot") == answer.text("boot")
    assert (hello.count("v"), hello.count("seq"), out.text("text"), end.count("status")) == (1, 1, "a  b", 0)
    every_s = (second.count("mono_ns") - first.count("mono_ns")) / 1e9
    assert every_s > 0
    accuracy.check("seconds between beats", every_s, wire.BEAT_EVERY_S - 0.3, wire.BEAT_EVERY_S + 0.3, window)
    assert numbered(host.frames) == [1, 2, 3]
    since = len(host.frames)
    host.order("attach", ("after", 2))
    host.kind("exit", since=since)
    host.kind("beat", since=since)
    assert numbered(host.frames[since:]) == [3]


def test_a_hang_up_that_is_noticed_late_does_not_silence_the_guest(odd_port):
    """After a restore the kernel may learn of the old host's end and the new host's order before the new connection."""
    host = odd_port.host
    host.order("attach", ("after", 1))
    odd_port.hang_up()
    number = host.send("attach", ("after", 0))
    odd_port.has_taken_orders()
    odd_port.has_looked()
    odd_port.is_there()
    answer = host.until(lambda f: f.kind == "attached" and f.count("id") == number)
    since = host.frames.index(answer)
    assert host.order("go").kind == "ok"  # reports for an attaching host arrive before the next answer
    assert numbered(host.frames[since:]) == [1]
    host.kind("beat", since=since)


def test_a_port_without_a_host_is_looked_at_now_and_then(odd_port):
    """Also once a beat is due, which no host could receive."""
    host, looks = odd_port.host, 40
    host.order("attach", ("after", 1))
    host.kind("beat")
    odd_port.hang_up()
    begin, begin_s = odd_port.looks(), time.monotonic()
    wait_until(lambda: odd_port.looks() >= begin + looks, "looks at the port")
    assert time.monotonic() - begin_s > 0.8 * looks * ABSENT_S
    odd_port.is_there()
    host.kind("beat", since=len(host.frames))


def test_a_guest_saved_in_the_middle_of_a_frame_tells_the_next_host_all(odd_port):
    """The new host first gets the rest of a frame, and skips it; numbered frames arrive complete after the answer."""
    host = odd_port.host
    host.order("attach", ("after", 0))
    pid = host.run("/bin/echo", "one")
    host.until(lambda f: f.kind == "exit" and f.count("pid") == pid)
    told = [(frame.kind, frame.fields) for frame in host.frames if "seq" in frame.fields and frame.kind != "attached"]
    odd_port.refuses_after(10)
    odd_port.is_full()  # no frame is that short
    while host.receive(0.0):
        pass
    host.reader, host.frames = wire.Reader(), []  # another host, which has received nothing so far
    number = host.send("attach", ("after", 0))
    odd_port.has_taken_orders()
    odd_port.has_looked()
    odd_port.takes_all(told=True)
    answer = host.until(lambda f: f.kind == "attached" and f.count("id") == number)
    assert host.order("go").kind == "ok"
    since = host.frames.index(answer) + 1
    assert [(frame.kind, frame.fields) for frame in host.frames[since:] if "seq" in frame.fields] == told
    assert host.reader.skipped == 1
    host.kind("beat", since=since)


@pytest.mark.parametrize("most_bytes", [1, 2, 7, 100])
def test_writes_that_take_a_part_lose_nothing(odd_port, most_bytes):
    host = odd_port.host
    odd_port.takes(most_bytes)
    host.order("attach", ("after", 0))
    lines = [f"line {number}" for number in range(20)]
    pid = host.run("/bin/sh", "-c", "\n".join(f"echo {line}" for line in lines))
    host.until(lambda f: f.kind == "exit" and f.count("pid") == pid)
    host.kind("beat", since=len(host.frames))
    assert [frame.text("text") for frame in host.frames if frame.kind == "out"] == lines
    assert numbered(host.frames) == list(range(1, len(lines) + 3))
    assert host.reader.skipped == 0


@pytest.mark.parametrize("told", [True, False])
def test_a_port_that_refuses_gets_all_once_it_takes_something(odd_port, told):
    """Also if the agent gets no event for it."""
    host = odd_port.host
    host.order("attach", ("after", 0))
    odd_port.refuses_after(1)
    odd_port.is_full()
    numbers = [host.send("attach", ("after", 0))]
    for _ in range(3):
        odd_port.has_taken_orders()
        numbers.append(host.send("go"))
    odd_port.has_taken_orders()
    numbers += [host.send("go") for _ in range(6)]  # the agent does not read them
    odd_port.has_looked()
    odd_port.takes_all(told=told)
    since = len(host.frames)
    last = host.until(lambda f: f.kind == "ok" and f.count("id") == numbers[-1], since=since)
    answers = [frame for frame in host.frames if frame.kind in ("attached", "ok", "refused")]
    assert [frame.count("id") for frame in answers][-10:] == numbers
    assert {frame.kind for frame in answers} == {"attached", "ok"}
    assert host.reader.skipped == 0
    host.kind("beat", since=host.frames.index(last))


def test_a_repeated_order_is_answered_again_and_not_done_again(agent):
    host = agent.host
    host.order("attach", ("after", 0))
    first = host.order("run", ("arg", "/bin/echo"), ("arg", "once"))
    again = host.order("run", ("arg", "/bin/echo"), ("arg", "once"), number=host.last_id)
    assert again == first
    assert host.order("attach", ("after", 9), number=1).kind == "refused"  # older than the agent's buffer
    host.kind("exit")
    host.kind("beat")
    assert len([f for f in host.frames if f.kind == "out"]) == 1


@pytest.mark.parametrize(
    ("kind", "fields", "complaint"),
    [
        ("run", [("arg", "echo")], "expected an absolute path"),
        ("run", [("arg", "/no/such")], "/no/such: No such file"),
        ("run", [], "expected an absolute path"),
        ("kill", [("signal", 0)], "expected a number from 1"),
        ("task", [("name", "a\nb")], "name: expected a value of one line"),
        ("attach", [], "after: expected a count"),
        ("fly", [], "expected attach, task"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(agent, kind, fields, complaint):
    answer = agent.host.order(kind, *fields)
    assert answer.kind == "refused"
    assert complaint in answer.text("error")


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(["name", "guest", "run", "seed", "job"]), VALUES))
def test_a_task_arrives_as_it_was_sent(lasting, fields):
    assert lasting.host.order("task", *fields.items()).kind == "ok"
    text = (lasting.folder / "task").read_bytes().decode()
    assert text == "".join(f"{name}={value}\n" for name, value in fields.items())


@settings(max_examples=60)
@given(st.binary(max_size=300), st.binary(max_size=200), st.floats(0, 1, exclude_max=True))
def test_a_whole_frame_is_found_after_whatever_there_was_before_it(lasting, garbage, text, part):
    host = lasting.host
    host.last_id += 1
    order = wire.encode("attach", [("id", host.last_id), ("after", host.last_id)])
    cut = order[: int(part * len(order))]
    since = len(host.frames)
    host.end.sendall(garbage + cut + order + text.replace(b"\n", b"") + b"\n" + cut + b"\n")
    answer = host.until(lambda f: f.kind == "attached", since=since)
    assert answer.count("id") == host.last_id
    assert host.reader.skipped == 0  # the agent always writes whole frames


@settings(max_examples=40)
@given(st.lists(st.binary(max_size=60).map(lambda b: b.replace(b"\n", b"").replace(b"\0", b"")), max_size=5))
def test_printed_bytes_come_line_by_line(lasting, lines):
    host = lasting.host
    since = len(host.frames)
    host.order("attach", ("after", 10**9))
    # the shell prints octal escapes, so that text can request any byte
    script = "".join(f"printf '{''.join(f'{chr(92)}{byte:03o}' for byte in line)}{chr(92)}n'\n" for line in lines)
    answer = host.order("attach", ("after", host.order("attach", ("after", 10**9)).count("seq")))
    pid = host.run("/bin/sh", "-c", script)
    host.until(lambda f: f.kind == "exit" and f.count("pid") == pid, since=since)
    found = [f.text("text") for f in host.frames[since:] if f.kind == "out" and f.count("pid") == pid]
    assert found == [line.decode(errors="replace") for line in lines]
    assert answer.kind == "attached"


def test_go_reaches_a_program_before_or_after_it_is_ready_and_progress_is_told_once(agent):
    host = agent.host
    host.order("attach", ("after", 0))
    for early in (True, False):
        since = len(host.frames)
        host.order("task", ("name", "x"))
        new = len(host.frames)  # no later frame belongs to the earlier task
        program = Program(agent.folder)
        if early:
            host.order("go")
        program.say("ready", ("ballast_mib", 1), ("touch_s", 0.5))
        assert host.kind("ready", since=since).count("ballast_mib") == 1
        if not early:
            host.order("go")
        assert program.end.recv(100) == b"go"
        assert "steps" not in host.kind("beat", since=new).fields
        store(agent.folder, 7)
        assert host.kind("progress", since=since).count("units") == 7
        store(agent.folder, 9, 3, 2_000_000_000, 4_000_000_000, 500_000_000)
        beat = host.until(lambda f: f.kind == "beat" and "steps" in f.fields, since=new)
        assert [beat.number(name) for name in ("units", "steps", "longest_s", "compute_s", "comm_s")] == [
            9,
            3,
            2,
            4,
            0.5,
        ]
        later = host.until(lambda f: f.kind == "beat", since=host.frames.index(beat) + 1)
        assert (later.count("steps"), later.number("longest_s")) == (3, 0)  # reported once
        assert len([f for f in host.frames[since:] if f.kind == "progress"]) == 1
        program.say("done", ("units", 9), ("checksum", "ab"), ("messages", 0), ("compute_s", 1), ("comm_s", 0))
        assert host.kind("done", since=since).text("checksum") == "ab"
        program.end.close()


def test_an_order_older_than_the_last_is_refused_with_its_id(agent):
    assert agent.host.order("attach", ("after", 0), number=500).kind == "attached"
    older = agent.host.order("go", number=499)
    assert (older.kind, older.count("last")) == ("refused", 500)
    assert agent.host.order("go", number=501).kind == "ok"


def test_kill_reaches_children_in_sessions_of_their_own(agent):
    host = agent.host
    host.order("attach", ("after", 0))
    pid = host.run("/bin/sh", "-c", "setsid sh -c 'echo $$; exec sleep 600' & setsid setsid -f sleep 601; wait")
    host.kind("out")
    assert host.order("kill", ("signal", int(signal.SIGKILL))).kind == "ok"
    end = host.until(lambda f: f.kind == "exit" and f.count("pid") == pid)
    assert end.count("status") == 128 + signal.SIGKILL
    # all processes that held the output are gone, and none of them remains below the agent
    host.kind("beat", since=len(host.frames))
    left = host.run("/bin/ps", "--no-headers", "-o", "args", "--ppid", str(agent.process.pid))
    host.until(lambda f: f.kind == "exit" and f.count("pid") == left)
    assert [f.text("text")[:7] for f in host.frames if f.kind == "out" and f.count("pid") == left] == ["/bin/ps"]


def test_much_output_is_bounded_and_the_last_of_it_kept(agent):
    host = agent.host
    pid = host.run("/bin/sh", "-c", "i=0; while [ $i -lt 6000 ]; do echo line $i; i=$((i+1)); done")
    host.order("attach", ("after", 0))
    host.kind("exit")
    lines = [f for f in host.frames if f.kind == "out"]
    since = len(host.frames)
    host.order("attach", ("after", 0))
    host.kind("exit", since=since)
    kept = [f.text("text") for f in host.frames[since:] if f.kind == "out"]
    assert kept[-1] == "line 5999"
    assert kept == [f"line {i}" for i in range(6000 - len(kept), 6000)]
    assert 1000 < len(kept) * 10 <= 65536
    assert {f.count("pid") for f in lines} == {pid}
