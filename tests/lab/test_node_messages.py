"""Messages of nodes are checked before they are journalled: size, form, quotas; suspicious acts are reported once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.live_jobs import live_job

from testbed.bus import topics
from testbed.bus.event_details import MOST_EVENT_BYTES, MOST_REASON_CHARS, fitting
from testbed.bus.guest_details import Done, Drift, Ended, Failed, GuestDetail, Progress
from testbed.bus.memory import MemoryHub
from testbed.bus.messages import GuestEvent, GuestSpec, NodeFacts, NodeStatus, ProgramSpec, encode
from testbed.bus.requests import Requester
from testbed.bus.suspicious_acts import Act, ActKind, ActLog, SuspiciousError, told
from testbed.bus.telemetry import Telemetry
from testbed.control.cluster import Cluster
from testbed.control.paced_lines import PacedLines
from testbed.control.recorder import Recorder
from testbed.control.tracker import Tracker
from testbed.lab.fleet import Fleet, rule_of
from testbed.lab.node_messages import MOST_TELEMETRY_BYTES, QUOTAS, Bucket, Gate, Quota
from testbed.lab.virtual_time import run_in_virtual_time
from testbed.measure.rundir import RunDirectory, read_journal
from testbed.run import events
from testbed.run.journal import plain
from testbed.run.phases import Phase
from testbed.scenario.schema import DeadlinesTable
from testbed.scheduling.workload.jobs import Job

EVENTS = topics.node_topic("t", "n0", "event")


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def event(detail: dict[str, object], **changes: str) -> bytes:
    words = {"node": "n0", "guest": "g", "event": "progress", **changes}
    return json.dumps({"v": 1, **words, "mono_ns": 1, "detail": detail}).encode()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text() | st.sampled_from(["reason", "units", "checksum"]), VALUES, max_size=60))
def test_whatever_an_event_tells_what_is_written_of_it_is_small(detail: dict[str, object]) -> None:
    found = fitting(detail)
    assert len(json.dumps(found, allow_nan=False)) < 40_000
    assert not any(isinstance(value, dict | list) for value in found.values())
    assert fitting(found) == found


def test_real_details_are_kept_as_they_are() -> None:
    detail = {
        "units": 2**53, "checksum": "0" * 64, "messages": 3, "compute_s": 1.5, "steps": 3, "longest_s": 0.5,
        "verified": True, "unverified": "its program is not installed", "code": "lease-lost",
        "wanted": 0.5, "found": -1.0,
    }  # fmt: skip
    assert fitting(dict(detail)) == detail
    long = fitting({"reason": "x" * 100_000})["reason"]
    assert isinstance(long, str)
    assert long.startswith("x" * MOST_REASON_CHARS)
    assert long.endswith("… (100000 characters)")


@pytest.mark.parametrize(
    ("payload", "kind", "what"),
    [
        (b"\xff", ActKind.BAD_MESSAGE, "bad record on testbed/v1/t/node/n0/event"),
        (b"[" * 60_000, ActKind.BAD_MESSAGE, "bad record"),
        (event({}, guest="../x"), ActKind.BAD_MESSAGE, "guest '../x'"),
        (event({}, event="X" * 1000), ActKind.BAD_MESSAGE, "expected names"),
        (event({"x": "y" * MOST_EVENT_BYTES}), ActKind.BAD_MESSAGE, f"expected at most {MOST_EVENT_BYTES}"),
        (
            event({"units": "5"}),
            ActKind.BAD_MESSAGE,
            "detail of progress: Expected `int | null`, got `str`",
        ),
        (event({"units": -1}, event="ended"), ActKind.BAD_MESSAGE, "detail of ended: Expected `int` >= 0"),
        (event({"reason": 7}, event="failed"), ActKind.BAD_MESSAGE, "detail of failed: Expected `str`, got `int`"),
        (event({"found": 1e9}, event="drift"), ActKind.BAD_MESSAGE, "detail of drift: Expected `float` <="),
        (event({"silent_s": True}, event="healed"), ActKind.BAD_MESSAGE, "detail of healed: Expected `float"),
        (event({}, node="n1"), ActKind.FALSE_REPORT, "a GuestEvent says node = 'n1': expected 'n0'"),
    ],
)
def test_an_event_that_is_none_is_named_by_its_kind(payload: bytes, kind: ActKind, what: str) -> None:
    with pytest.raises(SuspiciousError) as caught:
        Gate("n0", Clock()).event(EVENTS, payload)
    assert caught.value.kind is kind
    assert what in str(caught.value)


@pytest.mark.parametrize(
    ("word", "told", "detail"),
    [
        ("progress", {"units": 7, "later": "x"}, Progress(units=7)),
        ("ended", {"units": 7, "checksum": "ab"}, Ended(units=7, checksum="ab")),
        ("failed", {}, Failed()),
        ("drift", {"found": -1, "wanted": 0.5}, Drift(found=-1.0, wanted=0.5)),
        ("of-a-later-version", {"x": 1}, None),
    ],
)
def test_an_event_is_typed_where_it_comes_in_and_kept_for_the_journal_as_it_was_sent(
    word: str, told: dict[str, object], detail: GuestDetail | None
) -> None:
    report, left_out = Gate("n0", Clock()).event(EVENTS, event(told, event=word))
    assert (report.event, report.detail, report.told, left_out) == (word, detail, told, 0)
    entry = events.Guest(1.0, 2.0, job=1, task=0, node=0, event=word, detail=report.told)
    assert entry.typed == detail
    assert plain(entry)["detail"] == told


def test_details_of_a_journal_that_nobody_checked_can_be_read() -> None:
    entry = events.Guest(1.0, 2.0, job=1, task=0, node=0, event="done", detail={"units": "many", "checksum": "ab"})
    assert entry.typed == Done()


def test_a_node_has_its_quota_and_gets_it_back() -> None:
    clock = Clock()
    gate = Gate("n0", clock)
    quota = QUOTAS[GuestEvent]
    for _ in range(int(quota.burst)):
        gate.event(EVENTS, event({}))
    with pytest.raises(SuspiciousError) as caught:
        gate.event(EVENTS, event({}))
    assert caught.value.kind is ActKind.FLOOD
    clock.now_s += 1.0
    for _ in range(int(quota.per_s)):
        gate.event(EVENTS, event({}))
    with pytest.raises(SuspiciousError):
        gate.event(EVENTS, event({}))


def telemetry(guests: list[str]) -> bytes:
    amounts = ("cap_cores", "cpu_s", "rss_mib", "read_mib", "written_mib", "units_done", "units_mono_ns")
    machine = ("mono_ns", "cpu_frac", "memory_used_mib", "disk_read_mib", "disk_written_mib", "net_received_mib",
               "net_sent_mib", "agent_cpu_s", "agent_rss_mib")  # fmt: skip
    samples = [{"guest": guest, "state": "running", **dict.fromkeys(amounts, 0)} for guest in guests]
    return json.dumps({"v": 2, "node": "n0", **dict.fromkeys(machine, 0), "guests": samples}).encode()


FACTS = NodeFacts(
    driver="process", cpus=1.0, memory_mib=100, address="127.0.0.1", capabilities=(), machine_cores=1,
    machine_memory_mib=100, kernel="", cpu_model="", versions={}, image_port=0, image_free_mib=100,
)  # fmt: skip
SAMPLES = topics.node_topic("t", "n0", "telemetry")


@pytest.mark.parametrize(
    ("payload", "what"),
    [
        (telemetry(["g"] * 2), "a Telemetry of 2 guests, 1 of them different: expected each once"),
        (telemetry(["g"] * 6718), f"expected at most {MOST_TELEMETRY_BYTES}"),
    ],
)
def test_a_sample_that_names_a_guest_again_and_again_fills_no_disk(payload: bytes, what: str) -> None:
    with pytest.raises(SuspiciousError) as caught:
        Gate("n0", Clock()).telemetry(SAMPLES, payload)
    assert caught.value.kind is ActKind.BAD_MESSAGE
    assert what in str(caught.value)


def test_each_guest_of_a_sample_counts_against_the_quota() -> None:
    payload = telemetry([f"g{number}" for number in range(300)])
    gate, quota = Gate("n0", Clock()), QUOTAS[Telemetry]
    most = int(quota.burst * 20 / 300)
    for _ in range(most):
        gate.telemetry(SAMPLES, payload)
    with pytest.raises(SuspiciousError) as caught:
        gate.telemetry(SAMPLES, payload)
    assert caught.value.kind is ActKind.FLOOD
    assert len(Gate("n0", Clock()).telemetry(SAMPLES, payload).guests) == 300


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 1 << 20)), max_size=200))
def test_no_flow_exceeds_its_quota(flow: list[tuple[float, int]]) -> None:
    clock, quota = Clock(), Quota(burst=20, per_s=2, message_bytes=1000)
    bucket = Bucket(quota, clock)
    count, size = 0, 0
    for after_s, size_bytes in flow:
        clock.now_s += after_s
        if bucket.take(size_bytes):
            count, size = count + 1, size + size_bytes
    most = quota.burst + quota.per_s * clock.now_s
    assert count <= most + 1e-6
    assert size <= most * quota.message_bytes + 1e-6


def test_acts_are_reported_together_after_pauses_that_grow() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        reports: list[tuple[float, list[Act]]] = []
        log = ActLog(lambda acts: reports.append((loop.time() - begin_s, list(acts))), now_s=loop.time)

        async def attack(acts: int) -> None:
            for number in range(acts):
                log.note(f"n{number % 2}", ActKind.BAD_MESSAGE, f"message {number}\nand more" + "x" * 1000)
                await asyncio.sleep(0.01)

        begin_s = loop.time()
        await attack(3000)
        await asyncio.sleep(20.0)
        assert [at_s for at_s, _ in reports] == pytest.approx([0, 1, 3, 7, 15, 25, 35], abs=0.02)
        assert sum(act.count for _, acts in reports for act in acts) == 3000
        assert log.counts == {("n0", ActKind.BAD_MESSAGE): 1500, ("n1", ActKind.BAD_MESSAGE): 1500}
        assert all(len(told(acts)) < 1000 and "\n" not in told(acts) for _, acts in reports)
        reports.clear()
        begin_s = loop.time()
        await attack(200)  # after a quiet time, the next is reported at once
        assert [at_s for at_s, _ in reports] == pytest.approx([0, 1], abs=0.02)

    run_in_virtual_time(main())


def test_whoever_invents_names_fills_nothing() -> None:
    log = ActLog(lambda _acts: None, now_s=Clock())
    for number in range(5000):
        log.note(f"n{number}", ActKind.FLOOD, "x")
    assert len(log.counts) <= 1001
    assert sum(log.counts.values()) == 5000


def test_lines_that_a_node_causes_are_counted_instead_of_shown() -> None:
    clock, lines = Clock(), []
    paced = PacedLines(lines.append, clock)
    for number in range(1000):
        paced.put("n0", f"line {number}")
    paced.put("n1", "another node's")
    clock.now_s = 60.0
    paced.put("n0", "the last")
    assert len(lines) == 22
    assert lines[-2:] == ["another node's", "the last (and 980 lines about n0 that are left out)"]


SPEC = GuestSpec(
    guest="g", run="t", job=7, task=0, cpu_cores=1.0, memory_mib=10,
    program=ProgramSpec(name="eatcpu", work_units=100, units_per_iteration=1, seed=1),
)  # fmt: skip


def test_a_flood_of_events_leaves_a_small_journal_that_names_the_node(tmp_path: Path) -> None:
    """400 events of 250 kB about its own guest, 10,000 small ones, and some about a guest of another node."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        begin_s, lines = loop.time(), list[str]()
        directory = RunDirectory(tmp_path / "run", {})
        directory.open()
        recorder = Recorder(
            directory, lambda: loop.time() - begin_s, lambda: 0.0, watch=lambda _trace_s, text: lines.append(text),
            node_names=["n0", "n1"],
        )  # fmt: skip
        history = recorder.history
        live = live_job(Job(7, 0.0, 1, 1.0, 0.1, 100.0), (SPEC,), history, phase=Phase.RUNNING, running_on=(0,))
        tracker = Tracker(Cluster([live], history), recorder)
        recorder.ledger.listen(tracker.hear)
        hub = MemoryHub()
        async with hub.client("c") as bus, hub.client("n0") as n0, hub.client("n1") as n1:
            requester = Requester(bus, "t", "c", lambda: "")
            fleet = Fleet(bus, "t", ["n0", "n1"], requester, rule_of(DeadlinesTable()), acts=recorder.acts)
            fleet.on_guest_event = tracker.guest_event
            await fleet.open()
            for _ in range(400):
                await n0.publish(EVENTS, event({"x": "y" * 250_000}))
            for number in range(10_000):
                await n0.publish(EVENTS, event({"units": number, "x" * 100: 1, "reason": "z" * 20_000}))
                await asyncio.sleep(0.0002)
            for word in ("done", "failed"):
                await n1.publish(topics.node_topic("t", "n1", "event"), event({}, node="n1", event=word))
            await asyncio.sleep(2)
        elapsed_s = loop.time() - begin_s
        recorder.close()
        journal = read_journal(tmp_path / "run" / "events.jsonl")
        assert (tmp_path / "run" / "events.jsonl").stat().st_size < 2 << 20
        acts = [act for entry in journal if entry["kind"] == "suspicious" for act in entry["acts"]]
        assert {(act["node"], act["kind"]) for act in acts} == {
            ("n0", "bad-message"), ("n0", "flood"), ("n1", "foreign-guest"),
        }  # fmt: skip
        assert sum(act["count"] for act in acts if act["kind"] == "foreign-guest") == 2
        assert not live.state.ended
        assert len([line for line in lines if line.startswith("suspicious: ")]) <= elapsed_s + 1
        assert len(lines) <= elapsed_s + 1

    run_in_virtual_time(main())


def test_two_agents_of_one_name_are_told_by_the_controller(tmp_path: Path) -> None:
    async def main() -> None:
        acts: list[Act] = []
        hub = MemoryHub()
        async with hub.client("c") as bus, hub.client("n0") as n0:
            log = ActLog(acts.extend, now_s=asyncio.get_running_loop().time)
            fleet = Fleet(bus, "t", ["n0"], Requester(bus, "t", "c", lambda: ""), rule_of(DeadlinesTable()), acts=log)
            await fleet.open()
            for boot in ("first", "first", "second", "first", "second"):
                here = NodeStatus(node="n0", online=True, boot=boot)
                await n0.publish(topics.node_topic("t", "n0", "status"), encode(here))
            await asyncio.sleep(2)
        assert {(act.node, act.kind) for act in acts} == {("n0", ActKind.NAMESAKE)}
        assert sum(act.count for act in acts) == 2

    run_in_virtual_time(main())


def test_an_agent_that_was_restarted_many_times_is_there_once_it_stays() -> None:
    """Of the statuses over the quota, only the newest is read, later, because no other message replaces it."""
    acts: list[Act] = []

    async def main() -> None:
        hub = MemoryHub()
        async with hub.client("c") as bus, hub.client("n0") as n0:
            log = ActLog(acts.extend, now_s=asyncio.get_running_loop().time)
            fleet = Fleet(bus, "t", ["n0"], Requester(bus, "t", "c", lambda: ""), rule_of(DeadlinesTable()), acts=log)
            await fleet.open()
            for boot in range(40):
                for online in (False, True):
                    status = NodeStatus(node="n0", online=online, boot=f"boot{boot}", facts=FACTS if online else None)
                    await n0.publish(topics.node_topic("t", "n0", "status"), encode(status))
            node = fleet.nodes[0]
            for _ in range(30):
                await n0.publish(SAMPLES, telemetry([]))
                await asyncio.sleep(1)  # virtual time: a sample arrives every second
            assert node.boots[-1] == "boot39"
            assert node.online
            log.flush()

    run_in_virtual_time(main())
    assert {(act.node, act.kind) for act in acts} == {("n0", ActKind.FLOOD)}
    assert sum(act.count for act in acts) == 80 - 20
