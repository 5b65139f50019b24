"""Ranks that guest agents start: two guests are processes of this machine, the host is the process manager."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from pathlib import Path

import pytest
from support.guests.guest_end import AgentAlone, Host, Ranks
from support.guests.twins import expected, task
from support.live import wait_until

from node_agent.drivers.pmi.server import Barrier, PmiServer
from node_agent.drivers.procs.environment import BIN
from node_agent.guests import wire
from node_agent.programs.segments import segments_of

# sends each of its arguments to its process manager, prints the answers, and then waits to be ended
RANK = """
echo "$PMI_RANK of $PMI_SIZE"
for line; do
    printf '%b' "$line" >&$PMI_FD
    read -r answer <&$PMI_FD
    echo "$answer"
done
"""


@pytest.fixture
def guests(programs: Path, short_path: Path):
    """Two guest agents, with the environment of their programs."""
    with contextlib.ExitStack() as stack:
        agents = []
        for name in ("a", "b"):
            folder = short_path / name
            folder.mkdir()
            (folder / "meminfo").write_text("MemAvailable: 0 kB\n")
            agent = AgentAlone(
                programs / "agent", folder, DFRS_RUN=str(folder), DFRS_MEMINFO=str(folder / "meminfo"),
                LD_LIBRARY_PATH=str(BIN.parent / "lib"), DFRS_LAYER=str(programs / "waits.so"),
            )  # fmt: skip
            stack.enter_context(contextlib.closing(agent))
            agent.host.order("attach", ("after", 0))
            agents.append(agent)
        yield agents


def started(programs: Path, guests: list[AgentAlone], **changes: object) -> tuple[list, Ranks]:
    """Start a job of two working ranks; return its tasks."""
    tasks = [task(name="patterns", rank=rank, ranks=2, **changes) for rank in range(2)]
    for agent, one in zip(guests, tasks, strict=True):
        agent.host.order("task", *asdict(one).items())
    ranks = Ranks([agent.host for agent in guests])
    ranks.start(str(programs / "patterns"))
    ranks.until("ready")
    for agent in guests:
        agent.host.order("go")
    return tasks, ranks


def pmi_frames(host: Host, since: int = 0) -> list[wire.Frame]:
    return [frame for frame in host.frames[since:] if frame.kind == "pmi"]


def test_ranks_compute_what_their_twins_do_and_leave_mpi(programs: Path, guests: list[AgentAlone]) -> None:
    tasks, ranks = started(programs, guests, topology="ring", message_bytes=70_001)
    for done, one in zip(ranks.until("done"), tasks, strict=True):
        assert (done.text("checksum"), done.count("messages")) == expected(one)
    assert [end.count("status") for end in ranks.until("exit")] == [0, 0]
    assert ranks.barriers.released == 2, "one at the start, one at the end"
    for rank, agent in enumerate(guests):
        assert [frame.count("number") for frame in ranks.lines[rank]] == list(range(1, len(ranks.lines[rank]) + 1))
        since = len(agent.host.frames)
        agent.host.order("attach", ("after", 0))
        agent.host.kind("exit", since=since)
        assert not pmi_frames(agent.host, since), "answered requests are not sent again"


def waits_s(host: Host, least_s: float) -> list[float]:
    """Return the waits in the first beat in which they reach a length."""

    def told(frame: wire.Frame) -> list[float]:
        return list(map(float, frame.text("waits_s").split(","))) if "waits_s" in frame.fields else []

    return told(host.until(lambda frame: frame.kind == "beat" and sum(told(frame)) > least_s))


def test_beats_tell_for_whom_a_rank_waits(programs: Path, guests: list[AgentAlone]) -> None:
    """Rank 1 has half of the work of rank 0."""
    host = guests[1].host
    started(programs, guests, topology="ring", imbalance="1/i", work_units=10**12, units_per_iteration=1000)
    found_s = waits_s(host, 0.1)
    assert len(found_s) == 2
    assert found_s[1] == 0, "no rank waits for itself"
    assert waits_s(host, 2 * found_s[0])[0] > found_s[0]
    assert waits_s(guests[0].host, -1)[0] == 0
    assert not any("waits_s" in frame.fields for frame in host.frames if frame.kind in ("hello", "ready", "pmi"))


def test_a_new_task_begins_without_waits(programs: Path, guests: list[AgentAlone]) -> None:
    started(programs, guests, topology="ring", imbalance="1/i", work_units=10**12, units_per_iteration=1000)
    waits_s(guests[1].host, 0.01)
    for agent in guests:
        agent.host.order("kill", ("signal", 9))
        agent.host.kind("exit")
    host = guests[1].host
    since = len(host.frames)
    host.order("task", *asdict(task()).items())
    after = host.until(lambda frame: frame.kind == "ok", since)
    beat = host.until(lambda frame: frame.kind == "beat", host.frames.index(after))
    assert "waits_s" not in beat.fields


def test_a_rank_that_waits_in_a_barrier_is_served_on_by_its_next_host(programs: Path, guests: list[AgentAlone]) -> None:
    """As when its virtual machine is saved, and restored on another node."""
    _, ranks = started(programs, guests)

    def waiting() -> bool:
        ranks.look()
        return ranks.barriers.missing == (1,)

    other = ranks.hosts[1]
    held = list(ranks.lines[1])  # up to the barrier of the start; that of the end may have arrived already
    # only the second rank remains, in the barrier of MPI's finalization
    ranks.hosts = ranks.hosts[:1]
    wait_until(waiting, "the first rank in its barrier")
    line = other.until(lambda f: f.kind == "pmi" and f not in held and f.text("line") == "cmd=barrier_in")
    since = len(other.frames)
    other.order("attach", ("after", 0))
    again = other.kind("pmi", since=since)
    other.kind("done", since=since)
    assert pmi_frames(other, since) == [again] == [line]
    session, _, barriers = again.text("state").partition(".")
    server = PmiServer(1, 2, session, int(barriers))
    barrier = server.take(again.text("line").encode())
    assert barrier == Barrier(session, 2, {})
    ranks.hosts.append(other)
    ranks.servers[1] = server
    ranks.lines[1].append(again)
    ranks._looked[1] = len(other.frames)
    ranks._take(1, barrier)
    assert [end.count("status") for end in ranks.until("exit")] == [0, 0]


def test_a_rank_that_dies_is_told_and_its_end_closed(programs: Path, guests: list[AgentAlone]) -> None:
    _, ranks = started(programs, guests, work_units=10**12)
    segments = set().union(*(segments_of(pid) for pid in ranks.pids))
    host = guests[0].host
    host.order("kill", ("signal", 9))
    assert host.kind("exit").count("status") == 128 + 9
    answer = host.order(
        "rank", ("rank", 0), ("ranks", 2), ("state", "x"), ("arg", "/bin/sh"), ("arg", "-c"), ("arg", "exit 3")
    )
    assert answer.kind == "ok", "another rank can start"
    host.until(lambda f: f.kind == "exit" and f.count("status") == 3)
    guests[1].host.order("kill", ("signal", 9))
    guests[1].host.kind("exit")
    for path in segments:  # in a real guest, its memory and so its segments would be gone
        path.unlink(missing_ok=True)


class TestOneRank:
    @pytest.fixture
    def host(self, guests: list[AgentAlone]) -> Host:
        return guests[0].host

    def start(self, host: Host, *lines: str) -> None:
        argv = ["/bin/bash", "-c", RANK, "rank", *lines]
        fields = [("rank", 3), ("ranks", 7), ("state", "first"), *wire.repeated("arg", argv)]
        assert host.order("rank", *fields).kind == "ok"

    def printed(self, host: Host, text: str) -> None:
        host.until(lambda f: f.kind == "out" and f.text("text") == text)

    def test_each_line_is_answered_once_and_the_state_is_kept(self, host: Host) -> None:
        self.start(host, "one 100%=\\n", "two\\n")
        self.printed(host, "3 of 7")
        first = host.kind("pmi")
        assert [first.text(name) for name in ("number", "state", "line")] == ["1", "first", "one 100%="]
        since = len(host.frames)
        for _ in range(3):
            assert host.order("pmi", ("number", 1), ("state", "second"), ("text", "answer 1")).kind == "ok"
        second = host.kind("pmi", since=since)
        assert [second.text(name) for name in ("number", "state", "line")] == ["2", "second", "two"]
        self.printed(host, "answer 1")
        assert host.order("pmi", ("number", 1), ("state", "late"), ("text", "late")).kind == "ok"
        assert host.order("pmi", ("number", 2), ("state", "third"), ("text", "answer 2")).kind == "ok"
        self.printed(host, "answer 2")
        assert host.kind("exit").count("status") == 0
        assert [frame.text("text") for frame in host.frames if frame.kind == "out"] == [
            "3 of 7",
            "answer 1",
            "answer 2",
        ]

    def test_two_lines_at_once_are_told_one_after_the_other(self, host: Host) -> None:
        self.start(host, "one\\ntwo\\n")
        host.kind("pmi")
        host.kind("beat", since=len(host.frames))
        assert len(pmi_frames(host)) == 1
        host.order("pmi", ("number", 1), ("state", "s"), ("text", "a"))
        assert host.until(lambda f: f.kind == "pmi" and f.count("number") == 2).text("line") == "two"

    def test_a_line_that_is_too_long_is_an_error(self, host: Host) -> None:
        self.start(host, "x" * 5000)
        assert host.kind("error").text("message") == "MPI says a line of 2048 bytes or more"
        assert not pmi_frames(host)
        host.kind("exit")

    @pytest.mark.parametrize(
        ("kind", "fields"),
        [
            ("rank", {"rank": 0, "ranks": 2, "arg": "/bin/true"}),
            ("rank", {"rank": "a", "ranks": 2, "state": "s", "arg": "/bin/true"}),
            ("rank", {"rank": 0, "ranks": 2, "state": "s", "arg": "true"}),
            ("rank", {"rank": 0, "ranks": 2, "state": "s", "arg": "/no/such"}),
            ("pmi", {"number": 1, "state": "s", "text": "too early"}),
            ("pmi", {"number": 0, "state": "s"}),
            ("pmi", {"number": 0, "text": "s"}),
            ("pmi", {"number": 0, "state": "s", "text": "two\nlines"}),
        ],
    )
    def test_orders_that_make_no_sense_are_refused(self, host: Host, kind: str, fields: dict[str, object]) -> None:
        assert host.order(kind, *fields.items()).kind == "refused"
        self.start(host)
        assert host.kind("exit").count("status") == 0, "refused orders do not block a later rank"

    def test_a_second_rank_is_refused(self, host: Host) -> None:
        self.start(host, "one\\n")
        host.kind("pmi")
        answer = host.order("rank", ("rank", 0), ("ranks", 2), ("state", "s"), ("arg", "/bin/true"))
        assert answer.text("error") == "a rank runs here already"
