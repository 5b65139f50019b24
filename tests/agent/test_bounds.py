"""Limits of an agent itself: its memory, its log and its records; refusals at these limits, and their reports."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.agent.agent_command import node_agent
from support.deadlines import PATIENT_DEADLINES

from node_agent import bounds
from node_agent.agent import Agent, AgentConfig
from node_agent.bounds import Bounds
from node_agent.drivers.null import NullDriver
from node_agent.drivers.protocol import DriverEvent
from testbed.bus import topics
from testbed.bus.answers import AnswerJournal
from testbed.bus.guest_details import GuestReport
from testbed.bus.memory import MemoryHub
from testbed.bus.messages import (
    ITSELF,
    AgentLimit,
    Calibrate,
    GuestEvent,
    GuestSpec,
    ListGuests,
    Ping,
    ProgramSpec,
    Reply,
    Start,
    Stop,
    encode,
)
from testbed.bus.requests import CommandFailedError, Requester
from testbed.lab.fleet import Fleet, Node, limit_text, rule_of
from testbed.lab.leased import lease_lab
from testbed.lab.virtual_time import run_in_virtual_time
from testbed.scenario.schema import DeadlinesTable

SPEC = GuestSpec(
    guest="dfrs-a", run="t", job=1, task=0, cpu_cores=1.0, memory_mib=10,
    program=ProgramSpec(name="eatcpu", work_units=10**12, units_per_iteration=100, seed=1),
)  # fmt: skip


class Watched:
    """Limits of 500 MiB on a memory that the test sets."""

    def __init__(self) -> None:
        self.mib = 60.0
        self.said: list[dict[str, object]] = []
        self.relieved = 0
        self.bounds = Bounds(500, self._hear, lambda: self.mib)
        self.bounds.relieve = self._relieve

    def _hear(self, driver_event: DriverEvent) -> None:
        assert (driver_event.guest, driver_event.event) == (ITSELF, "limit")
        self.said.append(driver_event.detail)

    def _relieve(self) -> None:
        self.relieved += 1


def test_beyond_its_bound_an_agent_lets_go_of_what_it_can_and_takes_no_new_work() -> None:
    watched = Watched()
    watched.bounds.look(0.0)
    assert watched.bounds.refusal(Start(spec=SPEC, cap_cores=1.0)) is None
    for now_s in range(1, 31):
        watched.mib = 530.0
        watched.bounds.look(float(now_s))
    assert watched.said == [{"what": "memory", "state": "reached", "value_mib": 530, "bound_mib": 500}], "reported once"
    assert watched.relieved == 3, "every ten seconds"
    for action in (Start(spec=SPEC, cap_cores=1.0), Calibrate(cpu_s=1.0)):
        assert "its agent has 530 MiB, more than --agent-memory-mib 500" in str(watched.bounds.refusal(action))
    for action in (Stop(guest="a"), ListGuests(), Ping()):
        assert watched.bounds.refusal(action) is None
    watched.mib = 480.0
    watched.bounds.look(31.0)
    assert watched.bounds.refusal(Calibrate(cpu_s=1.0)) is not None, "refused until the memory is below 90 %"
    watched.mib = 449.0
    watched.bounds.look(32.0)
    assert watched.bounds.refusal(Calibrate(cpu_s=1.0)) is None
    assert [each["state"] for each in watched.said] == ["reached", "left"]


def test_without_a_bound_nothing_is_refused() -> None:
    free = Bounds(0, lambda _driver_event: pytest.fail("an event without limits"), lambda: 1e9)
    free.look(0.0)
    assert free.refusal(Start(spec=SPEC, cap_cores=1.0)) is None


def test_a_controller_is_told_and_its_commands_that_end_things_are_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        hub = MemoryHub()
        mib = 60.0
        monkeypatch.setattr(bounds, "rss_mib", lambda: mib)
        config = AgentConfig(
            "t", "n1", 1.0, 100, tmp_path, tmp_path / "images", str(tmp_path), serve_images=False, agent_memory_mib=500
        )
        agent = Agent(config, NullDriver(), lambda presence: hub.client("agent", presence))
        agent._bounds._read_mib = lambda: mib
        told: list[AgentLimit] = []
        async with (
            hub.client("c") as bus,
            lease_lab(bus, "t", ["n1"], "c", deadlines=PATIENT_DEADLINES) as leased,
        ):
            fleet = leased.fleet
            fleet.on_limit = lambda _node, limit: told.append(limit)
            running = asyncio.create_task(agent.run())
            await leased.ready()
            await fleet.call(0, Start(spec=SPEC, cap_cores=1.0, verify=False), 60.0)
            mib = 700.0
            await asyncio.sleep(3)
            other = Start(
                spec=GuestSpec(**{f: getattr(SPEC, f) for f in SPEC.__struct_fields__} | {"guest": "b"}), cap_cores=1.0
            )
            with pytest.raises(CommandFailedError, match="n1: start: rejected: its agent has 700 MiB, more than"):
                await fleet.call(0, other, 60.0)
            await fleet.call(0, Stop(guest="dfrs-a"), 60.0)
            mib = 60.0
            await asyncio.sleep(3)
            await fleet.call(0, other, 60.0)
            assert [(limit.what, limit.state, limit.value_mib) for limit in told] == [
                ("memory", "reached", 700), ("memory", "left", 60),
            ]  # fmt: skip
            agent.stop()
            await running

    run_in_virtual_time(main())


def test_a_node_that_says_it_all_the_time_is_heard_once_a_minute() -> None:
    async def main() -> None:
        hub = MemoryHub()
        heard: list[AgentLimit] = []
        guests: list[GuestReport] = []
        detail = {"what": "log", "state": "reached", "value_mib": 16, "bound_mib": 16}
        async with hub.client("c") as bus, hub.client("n1") as agent:
            fleet = Fleet(bus, "t", ["n1"], Requester(bus, "t", "c", lambda: ""), rule_of(DeadlinesTable()))
            fleet.on_limit = lambda _node, limit: heard.append(limit)
            fleet.on_guest_event = lambda _node, event: guests.append(event)
            await fleet.open()
            for number in range(100):
                bad = {"what": "x" * 100_000} if number % 2 else {**detail, "value_mib": -1}
                for each in (detail, bad):
                    event = GuestEvent(node="n1", guest=ITSELF, event="limit", mono_ns=1, detail=each)
                    await agent.publish(topics.node_topic("t", "n1", "event"), encode(event))
                await asyncio.sleep(1)
            assert (len(heard), guests) == (2, [])

    run_in_virtual_time(main())


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (
            AgentLimit(what="memory", state="reached", value_mib=530, bound_mib=512),
            "uses 530 MiB, more than its bound of 512",
        ),
        (AgentLimit(what="memory", state="left", value_mib=80, bound_mib=512), "uses 80 MiB again, and accepts work"),
        (AgentLimit(what="log", state="reached", value_mib=16, bound_mib=16), r"log of its agent was full \(16 MiB\)"),
    ],
)
def test_what_a_user_reads_is_one_line_with_the_node(
    limit: AgentLimit, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    import re

    text = limit_text("n7", limit)
    assert text.startswith("node n7: ")
    assert re.search(words, text)
    assert "\n" not in text
    from testbed.lab.fleet import _log_limit

    _log_limit(Node(0, "n7"), limit)
    assert caplog.messages == [text]


WRITER = """
import logging, sys
from node_agent.log_file import BoundedLog, turns
logging.basicConfig(handlers=[BoundedLog(10_000)], level=logging.INFO)
for number in range(int(sys.argv[1])):
    logging.info("line %06d", number)
print(turns())
"""


@pytest.mark.parametrize("mode", ["wb", "ab"])
def test_a_log_file_is_bounded_and_keeps_the_last_lines(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "agent.log"
    with path.open(mode) as log:
        done = subprocess.run([sys.executable, "-c", WRITER, "5000"], stdout=subprocess.PIPE, stderr=log, check=True)
    assert int(done.stdout) > 5
    before = (tmp_path / "agent.log.1").read_text()
    kept = (before + path.read_text()).splitlines()
    assert path.stat().st_size <= 10_100
    assert len(before) <= 10_100
    numbers = [int(line.rpartition(" ")[2]) for line in kept if "line " in line]
    assert numbers == list(range(numbers[0], 5000)), "the last files have no lost lines and no holes"
    assert {each.name for each in tmp_path.iterdir()} == {"agent.log", "agent.log.1"}


@pytest.mark.parametrize("what", ["folder", "no copy", "no rename"])
def test_a_log_whose_older_part_cannot_be_written_stays_bounded_and_says_so_once(tmp_path: Path, what: str) -> None:
    path = tmp_path / "agent.log"
    if what == "folder":
        (tmp_path / "agent.log.1").mkdir()
        (tmp_path / "agent.log.1" / "keep").write_text("somebody's")
    elif what == "no copy":
        (tmp_path / "agent.log.1.part").mkdir()
    else:
        broken = "import pathlib\ndef no(*_): raise OSError(28, 'No space left on device')\npathlib.Path.replace = no\n"
    program = (broken if what == "no rename" else "") + WRITER
    with path.open("ab") as log:
        done = subprocess.run([sys.executable, "-c", program, "5000"], stdout=subprocess.PIPE, stderr=log, check=True)
    assert int(done.stdout) > 5
    text = path.read_text()
    assert path.stat().st_size <= 10_300
    assert not [line for line in text.splitlines() if "Traceback" in line]
    assert text.splitlines()[-1].endswith("line 004999"), "the log continues"
    assert text.count("earlier lines are lost") == 1
    assert "earlier lines are lost" in text.splitlines()[0]
    assert {each.name for each in tmp_path.iterdir()} <= {"agent.log", "agent.log.1", "agent.log.1.part"}
    part = tmp_path / "agent.log.1.part"
    assert what == "no copy" or not part.exists(), "nothing is left behind"


STUCK_WRITER = """
import os
cut = os.ftruncate
calls = 0
def stuck(*arguments):
    global calls
    calls += 1
    if calls % 100:
        raise OSError(1, "Operation not permitted")
    cut(*arguments)
os.ftruncate = stuck
"""


def test_a_log_that_cannot_be_emptied_takes_no_more_lines_until_it_can_be(tmp_path: Path) -> None:
    path = tmp_path / "agent.log"
    with path.open("ab") as log:
        program = [sys.executable, "-c", STUCK_WRITER + WRITER, "5000"]
        done = subprocess.run(program, stdout=subprocess.PIPE, stderr=log, check=True)
    assert int(done.stdout) > 2
    assert path.stat().st_size <= 10_300
    text = path.read_text()
    assert "Traceback" not in text
    assert text.count("98 lines were left out") == 1
    assert (tmp_path / "agent.log.1").stat().st_size <= 10_300


def test_a_line_of_the_log_is_one_line_whatever_a_guest_says() -> None:
    program = "import logging; from node_agent.log_file import log_to_stderr; log_to_stderr(20); "
    says = "logging.warning('guest %s: %s', 'g', 'a\\x1b[2J\\nb\\u2028c' * 10_000)"
    done = subprocess.run([sys.executable, "-c", program + says], capture_output=True, check=True)
    text = done.stderr.decode().rstrip("\n")
    assert "WARNING root: guest g: a" in text
    assert text.isprintable()
    assert len(text) < 4100


def test_what_is_no_file_is_left_alone() -> None:
    done = subprocess.run([sys.executable, "-c", WRITER, "5000"], capture_output=True, check=True)
    assert (done.stdout, done.stderr.count(b"\n")) == (b"0\n", 5000)


def test_a_full_log_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    full = 3
    monkeypatch.setattr(bounds, "turns", lambda: full)
    watched = Watched()
    watched.bounds.look(0.0)
    assert watched.said == [], "no event of the state before"
    full = 5
    watched.bounds.look(1.0)
    watched.bounds.look(2.0)
    assert watched.said == [{"what": "log", "state": "reached", "value_mib": 16, "bound_mib": 16}]


@pytest.mark.parametrize("value", ["-1", "1", "127", "99999999999"])
def test_a_bound_that_no_agent_can_keep_is_refused(value: str, tmp_path: Path) -> None:
    done = node_agent(tmp_path, "--agent-memory-mib", value)
    assert (done.returncode, done.stderr) == (
        2,
        f"node-agent: --agent-memory-mib {value}: expected 0, or 128 and more\n",
    )


def reply(number: int, size: int) -> Reply:
    return Reply(id=f"c{number}", node="n", status="done", result={"x": "y" * size})


@given(st.lists(st.integers(0, 3000), max_size=60))
def test_answers_that_are_remembered_are_bounded_in_memory_and_on_disk(sizes: list[int]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "replies.jsonl"
        with AnswerJournal(path, limit=20, limit_bytes=10_000) as journal:
            for number, size in enumerate(sizes):
                journal.begin(Reply(id=f"c{number}", node="n", status="accepted"))
                journal.finish(reply(number, size))
                assert journal.get(f"c{number}") == reply(number, size), "the last reply is always kept"
            known = {number for number in range(len(sizes)) if journal.get(f"c{number}") is not None}
            journal.begin(Reply(id="open", node="n", status="accepted"))
            assert path.stat().st_size <= 4 * 10_000 + 4000
        assert len(known) <= 20
        assert sum(len(encode(reply(number, sizes[number]))) for number in sorted(known)[:-1]) <= 10_000
        assert known == set(range(len(sizes) - len(known), len(sizes))), "the newest are kept"
        with AnswerJournal(path, limit=20, limit_bytes=10_000) as again:
            kept = {number for number in range(len(sizes)) if again.get(f"c{number}") is not None}
            assert kept <= known
            assert known - kept <= set(sorted(known)[:1]), "one leaves space for the reply of the current command"
            found = again.get("open")
            assert found is not None
            assert found.error == "interrupted: the agent was restarted"
