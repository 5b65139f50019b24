"""The guest agent and the host understand each other, also through a channel that loses and tears."""

from __future__ import annotations

import signal
import socket
import struct

import pytest
from guest_end import AgentAlone
from hypothesis import given, settings
from hypothesis import strategies as st

from node_agent.guests import wire

VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\0\n"), max_size=40)


@pytest.fixture
def agent(programs, short_path):
    alone = AgentAlone(programs / "agent", short_path)
    alone.folder = short_path
    yield alone
    alone.close()


@pytest.fixture(scope="module")
def lasting(programs, tmp_path_factory):
    alone = AgentAlone(programs / "agent", tmp_path_factory.mktemp("a"))
    alone.folder = tmp_path_factory.getbasetemp() / "a0"
    yield alone
    alone.close()


class Program:
    """A program's end of the agent's socket."""

    def __init__(self, folder) -> None:
        self.end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.end.settimeout(10)
        self.end.connect(str(folder / "agent.sock"))

    def say(self, kind, *fields) -> None:
        self.end.send(wire.encode(kind, fields)[12:-1])


def store(folder, *words: int) -> None:
    """Write the first words of what a program stores for the agent, and do not cut the file: it is mapped."""
    with (folder / "progress").open("r+b") as file:
        file.write(struct.pack(f"<{len(words)}Q", *words))


def numbered(frames) -> list[int]:
    return [frame.count("seq") for frame in frames if "seq" in frame.fields and frame.kind != "attached"]


def test_attaching_tells_what_was_before_and_beats_from_then_on(agent):
    host = agent.host
    assert host.order("run", ("arg", "/bin/echo"), ("arg", "a  b")).kind == "ok"
    assert not [f for f in host.frames if f.kind != "ok"]  # nobody was attached
    answer = host.order("attach", ("after", 0))
    hello, out, end, first, second = (
        host.kind("hello"), host.kind("out"), host.kind("exit"), host.kind("beat"),
        host.until(lambda f: f.kind == "beat" and f != host.kind("beat")),
    )  # fmt: skip
    assert hello.text("boot") == answer.text("boot")
    assert (hello.count("v"), hello.count("seq"), out.text("text"), end.count("status")) == (1, 1, "a  b", 0)
    assert abs((second.count("mono_ns") - first.count("mono_ns")) / 1e9 - wire.BEAT_EVERY_S) < 0.3
    assert numbered(host.frames) == [1, 2, 3]
    since = len(host.frames)
    host.order("attach", ("after", 2))
    host.kind("exit", since=since)
    host.kind("beat", since=since)
    assert numbered(host.frames[since:]) == [3]


def test_a_repeated_order_is_answered_again_and_not_done_again(agent):
    host = agent.host
    host.order("attach", ("after", 0))
    first = host.order("run", ("arg", "/bin/echo"), ("arg", "once"))
    again = host.order("run", ("arg", "/bin/echo"), ("arg", "once"), number=host.last_id)
    assert again == first
    assert host.order("attach", ("after", 9), number=1).kind == "refused"  # older than what is remembered
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
    assert host.reader.skipped == 0  # what the agent writes is always whole


@settings(max_examples=40)
@given(st.lists(st.binary(max_size=60).map(lambda b: b.replace(b"\n", b"").replace(b"\0", b"")), max_size=5))
def test_printed_bytes_come_line_by_line(lasting, lines):
    host = lasting.host
    since = len(host.frames)
    host.order("attach", ("after", 10**9))
    # the shell prints octal escapes, so that any byte can be asked for in text
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
        new = len(host.frames)  # from here on nothing is of the task before
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
        assert (later.count("steps"), later.number("longest_s")) == (3, 0)  # told once
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
    # whatever held the output is gone, and nothing of it is left below the agent
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
