"""Many malformed messages, with the live lease's token and from a node with a certificate, do no damage.

Agent, controller and broker are separate processes: the tests check their memory, their logs and their output.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import secrets
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import tomli_w
from support.deadlines import PATIENT, PATIENT_DEADLINES
from support.live import ENDLESS_UNITS, HANG_S, until
from support.secure.doors import LAB, Doors, open_doors
from support.secure.fuzzing import nonsense

from node_agent.agent import Agent, AgentConfig
from node_agent.drivers.process import ProcessDriver
from testbed.bus import messages, topics
from testbed.bus.client import MqttBus
from testbed.bus.messages import (
    Adopt,
    AnyAction,
    Calibrate,
    Cancel,
    CapChange,
    Command,
    DropImage,
    FetchImage,
    GuestEvent,
    GuestSpec,
    Hold,
    ImageRef,
    ListGuests,
    Migrate,
    MpiJoin,
    MpiPass,
    Native,
    NodeStatus,
    OfferImage,
    Ping,
    ProgramSpec,
    RankKeys,
    Release,
    Reply,
    Save,
    SetCaps,
    Start,
    Stop,
    encode,
)
from testbed.bus.migration import Destination
from testbed.bus.suspicious_acts import FILE, ActFile, ActKind
from testbed.bus.telemetry import GuestSample, Telemetry, guests_in
from testbed.lab.leased import lease_lab

pytestmark = pytest.mark.slow

MESSAGES = int(os.environ.get("DFRS_FUZZ_MESSAGES", "1000"))
RESULT = os.environ.get("DFRS_FUZZ_RESULT")  # a JSON file that gets one line per test
MOST_MIB = 100.0  # limit of an agent's memory, and of the growth of a controller's
BURST = 50  # messages; after each the agent must still answer
FEWEST_LINES = 20  # in a few seconds; the journal also gets events of the run's own jobs at once


@dataclass
class DomainSample:
    """Memory and output of a program while it received malformed messages; `before_mib` is its earlier peak."""

    before_mib: float
    peak_mib: float
    lines: int
    seconds: float


def peak_mib(pid: int) -> float:
    fields = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) for line in fields if line.startswith("VmHWM")), 0) / 1024


class Watch:
    """Observes a program from now on."""

    def __init__(self, pid: int, log: Path) -> None:
        self._pid, self._log = pid, log
        self._mib, self._lines, self._begin_s = peak_mib(pid), self._count(), time.monotonic()

    def _count(self) -> int:
        return len(self._log.read_text().splitlines())

    def seen(self) -> DomainSample:
        seconds = time.monotonic() - self._begin_s
        return DomainSample(self._mib, peak_mib(self._pid), self._count() - self._lines, seconds)


def judge(name: str, seen: DomainSample, text: str) -> None:
    if RESULT:
        with Path(RESULT).open("a") as file:
            print(json.dumps({"what": name, "messages": MESSAGES, **vars(seen)}), file=file)
    assert "Traceback" not in text, text[text.index("Traceback") :][:3000]
    assert seen.peak_mib - seen.before_mib < MOST_MIB
    assert seen.lines <= max(seen.seconds, FEWEST_LINES), f"{seen.lines} lines in {seen.seconds:.0f} s: {text[-3000:]}"


def program() -> ProgramSpec:
    return ProgramSpec(name="eatcpu", work_units=ENDLESS_UNITS, units_per_iteration=100, seed=1)


def spec(guest: str) -> GuestSpec:
    return GuestSpec(guest=guest, run="t", job=1, task=0, program=program(), cpu_cores=1.0, memory_mib=64)


def actions() -> list[AnyAction]:
    """Return a valid command of each kind except `Quit`, about things that do not exist or may change."""
    guest, image = "dfrs-f", ImageRef(image="f.img", bytes=8, digest="0" * 32)
    there = Destination(uri="qemu+tls://127.0.0.1/system", host="127.0.0.1", node="n1", partition="", bridge="")
    return [
        Start(spec=spec(guest), cap_cores=0.02, verify=False), Start(spec=spec(guest), cap_cores=0.02, image=image),
        MpiJoin(guest=guest, session="0" * 16),
        MpiPass(guest=guest, session="0" * 16, number=1, keys=(RankKeys(rank=0, keys={"-allgather-1-0": "00"}),)),
        SetCaps(caps={guest: 0.1}), Hold(guest=guest), Release(guest=guest), Save(guest=guest, image="f.img"),
        Migrate(guest=guest, to=there, budget_s=1.0, no_progress_s=1.0), Adopt(spec=spec(guest), cap_cores=0.1),
        OfferImage(image=image, ticket_digest="0" * 64, to="n1", for_s=10.0),
        FetchImage(image=image, host="127.0.0.1", port=9, ticket="t"), DropImage(image="f.img"), Stop(guest=guest),
        Calibrate(cpu_s=0.01), Native(program=program(), seconds=0.01, cap_cores=0.1),
        messages.Watch(guests=(guest,), every_s=0.01, for_s=0.05, caps=(CapChange(after_s=0.01, caps={guest: 0.1}),)),
        ListGuests(settled=(guest,)), Ping(), Cancel(command="f" * 16),
    ]  # fmt: skip


@contextmanager
def agent_program(doors: Doors, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    log = folder / "agent.log"
    with log.open("wb") as sink:
        child = subprocess.Popen(
            [
                sys.executable, "-m", "node_agent", "--lab", LAB, "--node", "n2", "--cpus", "1", "--memory-mib", "640",
                "--broker", f"mqtts://{doors.address}:{doors.agent_port}", "--state-dir", folder / "n2",
                "--tls-dir", doors.authority.folder / "nodes" / "n2",
            ],
            stdout=sink, stderr=sink,
        )  # fmt: skip
    try:
        yield child, log
    finally:
        child.terminate()
        child.wait(HANG_S)


def test_an_agent_bears_nonsense_that_carries_the_live_token(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")

    async def main(doors: Doors, child: subprocess.Popen[bytes], log: Path) -> None:
        async with (
            asyncio.timeout(HANG_S),
            MqttBus(doors.controller(), "alice", keep_session=False) as bus,
            lease_lab(bus, LAB, ["n2"], "alice", deadlines=PATIENT_DEADLINES) as leased,
        ):
            fleet, token = leased.fleet, leased.token
            await leased.ready()
            await fleet.call(0, Start(spec=spec("dfrs-a"), cap_cores=0.05, verify=False), HANG_S)
            watch = Watch(child.pid, log)
            seeds = [
                encode(Command(id="f" * 16, lease=token, deadline_s=2.0, action=action,
                               reply_to=topics.reply_topic(LAB, "alice", "n2")))
                for action in actions()
            ]  # fmt: skip
            topic = topics.node_topic(LAB, "n2", "command")
            for number, payload in enumerate(nonsense(seeds, MESSAGES, seed=11, keep=("lease", "v"))):
                fresh = payload.replace(b'"ffffffffffffffff"', f'"{secrets.token_hex(8)}"'.encode(), 1)
                await bus.publish(topic, fresh, qos=0)
                if number % BURST == BURST - 1:
                    await fleet.call(0, Ping(), HANG_S)
            told = guests_in(await fleet.call(0, ListGuests(), HANG_S))
            assert ("dfrs-a", "running", 0.05) in {(each.guest, each.state, each.cap_cores) for each in told}
            await fleet.call(0, Start(spec=spec("dfrs-b"), cap_cores=0.05, verify=False), HANG_S)
            seen = watch.seen()
        assert seen.peak_mib < MOST_MIB
        judge("commands with the live token, to an agent", seen, log.read_text())  # noqa: ASYNC240  # the agent has ended

    with open_doors(tmp_path / "doors") as doors, agent_program(doors, tmp_path) as (child, log):
        asyncio.run(main(doors, child, log))
    assert child.returncode == 0, log.read_text()[-3000:]
    assert outside.read_bytes() == b"precious"
    assert {path.name for path in tmp_path.iterdir()} == {"outside", "doors", "n2", "agent.log"}
    noted = ActFile(tmp_path / "n2" / FILE).read()
    assert {(act.node, act.kind) for act in noted} == {("n2", ActKind.REFUSED_COMMAND)}
    assert sum(act.count for act in noted) > MESSAGES // 4


def reports() -> dict[str, Sequence[bytes]]:
    """Return valid messages of n1, by the topics on which it may publish."""
    sample = GuestSample(
        guest="dfrs-t-j1-t0", state="running", cap_cores=0.5, wanted_cores=0.5, cpu_s=1.0, rss_mib=10.0, read_mib=0.0,
        written_mib=0.0, units_done=5, units_mono_ns=1,
    )  # fmt: skip
    events = [
        GuestEvent(node="n1", guest="dfrs-t-j1-t0", event=event, mono_ns=1, detail=detail)
        for event, detail in (
            ("progress", {"units": 1}), ("done", {"units": 1, "checksum": "0" * 16}), ("failed", {"reason": "x"}),
            ("drift", {"cap_cores": 0.5, "wanted_cores": 1.0}), ("limit", {"what": "memory"}),
            ("mpi-barrier", {"session": "0" * 16, "number": 1, "keys": {"-allgather-1-0": "00"}}),
        )
    ]  # fmt: skip
    telemetry = Telemetry(
        node="n1", boot="b", mono_ns=1, cpu_frac=0.5, memory_used_mib=10.0, disk_read_mib=0.0, disk_written_mib=0.0,
        net_received_mib=0.0, net_sent_mib=0.0, agent_cpu_s=1.0, agent_rss_mib=60.0, guests=(sample,),
    )  # fmt: skip
    return {
        topics.node_topic(LAB, "n1", "telemetry"): [encode(telemetry)],
        topics.node_topic(LAB, "n1", "event"): [encode(event) for event in events],
        topics.node_topic(LAB, "n1", "status"): [encode(NodeStatus(node="n1", online=True, boot="b"))],
        topics.reply_topic(LAB, "alice", "n1"): [
            encode(Reply(id="0" * 16, node="n1", status=status)) for status in ("accepted", "done", "failed")
        ],
    }


SCENARIO = """
name = "fuzz"
policy = "GreedyPM */per/OPT=MIN/MINVT=600"
time_scale = 60
[programs]
calibration_s = 0.5
[workload]
trace = "fuzz.csv"
"""
JOBS = """job_id,submit_time_s,tasks,cpu_need_frac,mem_req_frac,run_time_s
1,0,1,1.0,0.1,10000000
2,1,2,1.0,0.1,10000000
3,2,1,1.0,0.1,10000000
"""


def write_scenario(doors: Doors, folder: Path) -> None:
    (folder / "fuzz.csv").write_text(JOBS)
    scenario = tomllib.loads(SCENARIO)
    scenario |= {
        "lab": LAB,
        "deadlines": PATIENT,
        "broker": {
            "address": f"mqtts://{doors.address}:{doors.controller_port}",
            "tls_dir": str(doors.authority.folder / "controllers/alice"),
        },
        "nodes": [{"name": name, "cpus": 1.0, "memory_mib": 640, "spawn": False} for name in ("n1", "n2")],
    }
    (folder / "fuzz.toml").write_text(tomli_w.dumps(scenario))


@asynccontextmanager
async def hostile_agent(doors: Doors, folder: Path) -> AsyncIterator[MqttBus]:
    """Run a working agent of n1; yields the bus on which the test can publish further messages in its name."""
    buses: list[MqttBus] = []

    def connect(presence: object) -> MqttBus:
        buses.append(MqttBus(doors.agent("n1"), "n1", presence))
        return buses[-1]

    config = AgentConfig(LAB, "n1", 1.0, 640, folder / "n1", folder / "n1" / "images")
    agent = Agent(config, ProcessDriver(), connect)
    running = asyncio.create_task(agent.run())
    try:
        await until(lambda: buses, "the agent's bus")
        yield buses[0]
    finally:
        agent.stop()
        await running


def failures(journal: Path) -> list[str]:
    entries = [json.loads(line) for line in journal.read_text().splitlines()]
    return [entry["reason"] for entry in entries if entry["kind"] == "job_failed"]


@contextmanager
def controller_program(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    screen = folder / "screen"
    with screen.open("wb") as sink:
        run = subprocess.Popen(
            [sys.executable, "-m", "testbed", "run", "fuzz.toml"], cwd=folder, stdout=sink, stderr=sink
        )
    try:
        yield run, screen
    finally:
        run.send_signal(signal.SIGINT)
        run.wait(HANG_S)


def begun(folder: Path, run: subprocess.Popen[bytes]) -> list[Path]:
    """Return the journal once a guest has progressed."""
    assert run.poll() is None, (folder / "screen").read_text()
    return [path for path in (folder / "runs").glob("*/events.jsonl") if '"progress"' in path.read_text()]


def test_a_controller_bears_nonsense_of_a_node(tmp_path: Path) -> None:
    """A run of endless jobs, which continues until it is interrupted, with any messages of one node."""

    async def main(doors: Doors) -> Path:
        drawn = {topic: nonsense(of, MESSAGES, seed=12) for topic, of in reports().items()}
        in_turn = itertools.cycle(drawn)
        async with asyncio.timeout(HANG_S), hostile_agent(doors, tmp_path) as bus:
            with controller_program(tmp_path) as (run, screen):
                await until(lambda: begun(tmp_path, run), "progress of a guest")
                watch = Watch(run.pid, screen)
                for number in range(MESSAGES):
                    topic = next(in_turn)
                    await bus.publish(topic, next(drawn[topic]), qos=0)
                    if number % BURST == 0:
                        await asyncio.sleep(0.05)  # speed: the rate of the messages
                assert run.poll() is None, screen.read_text()[-3000:]
                seen = watch.seen()
            judge("reports of a node, to a controller", seen, screen.read_text())
        (journal,) = (tmp_path / "runs").glob("*/events.jsonl")
        return journal

    with open_doors(tmp_path / "doors") as doors, agent_program(doors, tmp_path) as (_, log):
        write_scenario(doors, tmp_path)
        journal = asyncio.run(main(doors))
    assert "Traceback" not in log.read_text()
    assert journal.stat().st_size < 4 << 20
    entries = [json.loads(line) for line in journal.read_text().splitlines()]
    acts = [act for entry in entries if entry["kind"] == "suspicious" for act in entry["acts"]]
    assert {act["node"] for act in acts} == {"n1"}
    assert {"bad-message", "false-report"} <= {act["kind"] for act in acts}
    assert all("n1" in reason for reason in failures(journal)), failures(journal)
