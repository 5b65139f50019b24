"""From samples to points: the time of sampling, limits of late samples, iterations of guests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.live_jobs import live_job

from testbed.bus import topics
from testbed.bus.guest_details import report_of
from testbed.bus.memory import MemoryHub
from testbed.bus.messages import GuestEvent, GuestSpec, NodeFacts, NodeStatus, ProgramSpec, encode
from testbed.bus.requests import Requester
from testbed.bus.telemetry import GuestSample, Supersteps, Telemetry
from testbed.control.cluster import Cluster
from testbed.control.recorder import CapWindow, Recorder
from testbed.control.results import cap_error_pp
from testbed.control.tracker import StepMeter, Tracker
from testbed.lab.fleet import Fleet, Node, rule_of
from testbed.lab.sample_clock import SampleClock
from testbed.lab.virtual_time import run_in_virtual_time
from testbed.measure.rundir import RunDirectory, read_journal
from testbed.run.phases import Phase
from testbed.scenario.schema import DeadlinesTable
from testbed.scheduling.workload.jobs import Job

FACTS = NodeFacts(
    cpus=1.0, memory_mib=1000, machine_cores=2, machine_memory_mib=4000, cpu_model="a", kernel="k", driver="null",
    capabilities=(), versions={}, address="127.0.0.1", image_port=0, image_free_mib=0,
)  # fmt: skip
SECOND_NS = 10**9
ANCHOR_NS = 1_700_000_000 * SECOND_NS
UNITS = 10**6


def run(main: Coroutine[None, None, None]) -> None:
    run_in_virtual_time(main)


# --- the time of sampling


@given(
    st.integers(-(10**15), 10**15),
    st.lists(st.tuples(st.integers(0, 3 * SECOND_NS), st.booleans()), min_size=1, max_size=40),
)
def test_a_sample_is_stamped_too_late_by_no_more_than_the_fastest_delivery(offset_ns, deliveries):
    clock, delays = SampleClock(), []
    for number, (delay_ns, late) in enumerate(deliveries):
        mono_ns = 10**15 + number * SECOND_NS
        heard_ns = mono_ns + offset_ns + delay_ns + (60 * SECOND_NS if late else 0)
        if not late:
            delays.append(delay_ns)
        taken_ns = clock.taken_ns(mono_ns, heard_ns, late=late)
        if delays:
            assert taken_ns == mono_ns + offset_ns + min(delays)
            assert taken_ns <= heard_ns
            assert clock.taken_ns(mono_ns, heard_ns + 5, late=True) is None  # a repeated sample gives no second point
        else:
            assert taken_ns is None  # the relation of the clocks is unknown


def test_clocks_that_drift_apart_are_followed():
    clock = SampleClock()
    error_ns = []
    for second in range(24 * 3600):
        mono_ns, heard_ns = second * SECOND_NS, second * SECOND_NS + second * 10_000  # 10 µs per second
        taken_ns = clock.taken_ns(mono_ns, heard_ns + 1000, late=False)
        assert taken_ns is not None
        error_ns.append(abs(taken_ns - heard_ns))
    # speed: the test makes the clocks; the bound is their drift in ten minutes, not in a day
    assert max(error_ns) <= 600 * 10_000 + 1000


# --- late samples in a fleet


def telemetry(mono_s: float, *guests: GuestSample, **more: object) -> Telemetry:
    values: dict = {
        "node": "n0", "mono_ns": int(mono_s * 1e9), "boot": "b1", "cpu_frac": 0.5, "memory_used_mib": 1.0,
        "disk_read_mib": 1.0, "disk_written_mib": 1.0, "net_received_mib": 1.0, "net_sent_mib": 1.0,
        "agent_cpu_s": 1.0, "agent_rss_mib": 1.0, "guests": guests,
    }  # fmt: skip
    return Telemetry(**{**values, **more})


def test_late_samples_are_placed_in_order_and_say_nothing_of_now() -> None:
    async def main() -> None:
        loop, hub = asyncio.get_running_loop(), MemoryHub()
        async with hub.client("c") as bus, hub.client("n0") as agent:
            fleet = Fleet(bus, "t", ["n0"], Requester(bus, "t", "c", lambda: ""), rule_of(DeadlinesTable()))
            got: list[tuple[float, bool]] = []
            changes: list[bool] = []
            begin_s = loop.time()

            def take(_node: Node, record: Telemetry, taken_ns: int) -> None:
                got.append((round(taken_ns / 1e9 - begin_s, 3), record.late))

            fleet.on_telemetry = take
            fleet.on_node_change = lambda node, _change: changes.append(node.online)
            await fleet.open()
            watching = asyncio.create_task(fleet.watch())
            node = fleet.nodes[0]

            async def send(record: Telemetry) -> None:
                await agent.publish(topics.node_topic("t", "n0", "telemetry"), encode(record))
                await asyncio.sleep(0.001)

            here = NodeStatus(node="n0", online=True, boot="b1", facts=FACTS)
            await agent.publish(topics.node_topic("t", "n0", "status"), encode(here))
            await node.announced.wait()
            await send(telemetry(1000, late=True))  # sampled before this controller
            assert got == []
            for _ in range(3):  # the node's clock is 1000 s ahead, and delivery takes no time
                await send(telemetry(1000 + loop.time() - begin_s))
                await asyncio.sleep(1 - 0.001)
            assert got == [(0.001, False), (1.001, False), (2.001, False)]
            await asyncio.sleep(7)
            assert not node.online
            assert node.reason == "silent for 7.5 s, as all nodes"
            for second in (3, 4, 5):
                await send(telemetry(1000.001 + second, late=True))
            await send(telemetry(1000.001 + 4, late=True))  # a repeat, because the agent had no acknowledgement
            assert got[3:] == [(3.001, True), (4.001, True), (5.001, True)]
            assert not node.online  # it was online at that time, but may be gone by now
            assert node.telemetry is not None
            assert node.telemetry.mono_ns < 1003 * SECOND_NS
            await send(telemetry(1000.001 + 6))  # not marked as late, but queued at the broker
            assert got[-1] == (6.001, True)
            assert not node.online
            await send(telemetry(1000 + loop.time() - begin_s))
            assert got[-1][1] is False
            assert (node.online, changes) == (True, [False, True])
            await send(telemetry(5, boot="b2"))  # the agent was restarted, so its clock may be another one
            assert got[-1] == (pytest.approx(loop.time() - begin_s, abs=0.01), False)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    run(main())


# --- points


SPEC = GuestSpec(
    guest="g", run="t", job=7, task=0, cpu_cores=1.0, memory_mib=10,
    program=ProgramSpec(name="eatcpu", work_units=UNITS, units_per_iteration=100, seed=1),
)  # fmt: skip


def guest(
    units: int, cpu_s: float, steps: Supersteps | None = None, cap_cores: float | None = 0.5, wanted_cores: float = 0.5
) -> GuestSample:
    return GuestSample(
        guest="g", state="running", cap_cores=cap_cores, wanted_cores=wanted_cores, cpu_s=cpu_s,
        rss_mib=1.0, read_mib=0.0, written_mib=0.0, units_done=units, units_mono_ns=0, supersteps=steps,
    )  # fmt: skip


@dataclass
class World:
    """A tracker of one running job that writes into a real run directory, at a clock that the test sets."""

    folder: Path
    now_s: float = 0.0
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.directory = RunDirectory(self.folder / "run", {})
        self.directory.open()
        loop_s = asyncio.get_running_loop().time()
        self.begin_ns = int(loop_s * 1e9)
        self.recorder = Recorder(
            self.directory, lambda: asyncio.get_running_loop().time() - loop_s, lambda: 0.0, ANCHOR_NS,
            watch=lambda _trace_s, text: self.lines.append(text), node_names=["n0"],
        )  # fmt: skip
        self.live = live_job(
            Job(7, 0.0, 1, 1.0, 0.1, 100.0), (SPEC,), self.recorder.history, phase=Phase.RUNNING, running_on=(0,),
            progressed={0},
        )  # fmt: skip
        cluster = Cluster([self.live], self.recorder.history)
        self.tracker = Tracker(cluster, self.recorder)
        self.recorder.ledger.listen(self.tracker.hear)
        self.node = Node(0, "n0")

    def sample(self, at_s: float, found: GuestSample, *, late: bool = False, **more: object) -> None:
        record = telemetry(at_s, found, late=late, **more)
        self.tracker.telemetry(self.node, record, self.begin_ns + int(at_s * 1e9))

    def use(self, cores: float, first_s: int, end_s: int, *, late: bool = False, **caps: float | None) -> None:
        """Sample a guest once a second; its CPU time is `cores` times the seconds since the begin."""
        for second in range(first_s, end_s):
            self.sample(second, guest(second, cores * second, **caps), late=late)

    def tell(self, event: str, detail: dict[str, object]) -> None:
        told = GuestEvent(node="n0", guest="g", event=event, mono_ns=0, detail=detail)
        self.tracker.guest_event(0, report_of(told))

    def points(self, measurement: str) -> list[tuple[float, dict[str, float]]]:
        """Seconds since the anchor, and fields, as in the file."""
        self.directory.close()
        found = []
        for path in sorted(self.directory.path.glob("points*.lp")):
            for line in path.read_text().splitlines():
                head, fields, time_ns = line.split(" ")
                if head.split(",")[0] == measurement:
                    pairs = (pair.partition("=") for pair in fields.split(","))
                    values = {
                        name: value == "true" if value in ("true", "false") else float(value.removesuffix("i"))
                        for name, _, value in pairs
                    }
                    found.append(((int(time_ns) - ANCHOR_NS) / 1e9, values))
        return found


def test_points_of_late_samples_have_the_time_of_the_sample(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        world.sample(0.5, guest(100, 0.1))
        await asyncio.sleep(60)
        for at_s in (1.5, 2.5):
            world.sample(at_s, guest(int(100 * at_s), at_s), late=True)
        world.sample(-3.0, guest(100, 0.1))  # sampled before the run
        assert world.live.progress.units == [250]
        assert world.live.progress.at_s == pytest.approx(2.5)  # progress is extrapolated from the time of the sample
        world.sample(61.0, guest(200, 61.0))
        assert world.live.progress.units == [250]  # progress never decreases
        assert [at_s for at_s, _ in world.points("node")] == pytest.approx([0.5, 1.5, 2.5, 61.0], abs=1e-8)
        assert [(at_s, fields["units_done"]) for at_s, fields in world.points("guest")] == [
            (pytest.approx(0.5), 100), (pytest.approx(1.5), 150), (pytest.approx(2.5), 250), (pytest.approx(61.0), 200)
        ]  # fmt: skip

    run(main())


def test_a_window_of_constant_cap_ends_where_samples_come_late(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        world.use(0.5, 0, 6)
        world.use(0.9, 6, 9, late=True)
        world.use(0.25, 9, 21)
        found = [(fields["achieved_cores"], fields["window_s"]) for _, fields in world.points("cap")]
        assert found == [(pytest.approx(0.5), 5.0), (pytest.approx(0.25), 10.0)]

    run(main())


def windows(world: World) -> list[tuple[float, float, bool]]:
    """Length, requested cores, and whether a drift ended it, of each window."""
    return [
        (pytest.approx(fields["window_s"]), fields["requested_cores"], fields["drifted"])
        for _, fields in world.points("cap")
    ]


def test_a_drift_ends_a_window_and_marks_it_and_begins_none_while_it_lasts(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        world.use(0.5, 0, 5)
        world.use(0.9, 5, 9, cap_cores=0.9)  # another program raised the cap to 0.9 cores
        world.use(0.5, 9, 13)
        world.use(0.5, 13, 17, cap_cores=0.25, wanted_cores=0.25)
        world.live.state.phase = Phase.SAVING
        world.sample(17, guest(17, 17.0, cap_cores=0.25, wanted_cores=0.25))
        assert windows(world) == [(4.0, 0.5, True), (3.0, 0.5, False), (3.0, 0.25, False)]
        assert [window.drifted for window in world.recorder.cap_windows] == [True, False, False]
        caps = [(fields["cap_cores"], fields["wanted_cores"]) for _, fields in world.points("guest")]
        assert caps[4:10] == [(0.5, 0.5), *[(0.9, 0.5)] * 4, (0.5, 0.5)]

    run(main())


@pytest.mark.parametrize("node", [Node(0, "n0"), Node(1, "n1")])
def test_a_restored_guest_begins_a_window_even_if_no_sample_saw_it_saved(tmp_path: Path, node: Node) -> None:
    """The CPU time of a restored guest starts from 0. Windows were negative where it started on another node."""

    async def main() -> None:
        world = World(tmp_path)
        world.use(0.5, 0, 5)
        world.live.state.running_on, world.live.state.been = (node.index,), {(0, 0), (node.index, 0)}
        world.live.state.generation += 1
        world.node = node
        world.use(0.5, 6, 20)  # more CPU time than before, so that no counter is seen to fall
        assert windows(world) == [(4.0, 0.5, False), (10.0, 0.5, False)]
        assert [fields["achieved_cores"] for _, fields in world.points("cap")] == [pytest.approx(0.5)] * 2
        text = (world.directory.path / "points.lp").read_text()
        assert re.findall("^cap,job=7,node=(n.)", text, re.MULTILINE) == ["n0", node.name]

    run(main())


def test_a_window_ends_where_the_cpu_time_of_a_guest_falls(tmp_path: Path) -> None:
    """A driver that adds up processes has less when one of them has ended, and a node may report what it likes."""

    async def main() -> None:
        world = World(tmp_path)
        world.use(0.5, 0, 6)
        for second in range(6, 20):
            world.sample(second, guest(second, 0.5 * (second - 6)))
        assert windows(world) == [(5.0, 0.5, False), (10.0, 0.5, False)]
        assert [fields["achieved_cores"] for _, fields in world.points("cap")] == [pytest.approx(0.5)] * 2

    run(main())


def test_a_guest_that_is_saved_without_its_cap_has_not_drifted(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        world.use(0.5, 0, 4)
        world.live.state.phase = Phase.SAVING
        world.sample(4, guest(4, 4.0, cap_cores=1.0))
        assert windows(world) == [(3.0, 0.5, False)]

    run(main())


def test_a_drift_that_no_sample_saw_ends_a_window_too(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        world.use(0.5, 0, 4)
        detail = {"found": -1.0, "wanted": 0.5}
        world.tracker.guest_event(
            0, report_of(GuestEvent(node="n0", guest="g", event="drift", mono_ns=0, detail=detail))
        )
        world.use(0.5, 4, 8)
        world.live.state.phase = Phase.SAVING
        world.sample(8, guest(8, 4.0))
        assert windows(world) == [(3.0, 0.5, True), (3.0, 0.5, False)]
        assert [fields["found_cores"] for _, fields in world.points("cap_drift")] == [-1.0]

    run(main())


def test_a_node_that_never_had_a_guest_has_no_say_about_it(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        world.live.state.been = {(2, 0)}  # the job was moved from there, whose last samples may be late
        steps = Supersteps(steps=4, longest_s=0.5, compute_s=0.8, comm_s=0.2)
        for node in (Node(1, "n1"), Node(2, "n2")):
            record = telemetry(1.0, guest(100, 0.1, steps), node=node.name)
            world.tracker.telemetry(node, record, world.begin_ns + 10**9)
        assert world.live.progress.units == [0]
        assert [fields["units_done"] for _, fields in world.points("guest")] == [100]
        text = (world.directory.path / "points.lp").read_text()
        assert "guest,job=7,node=n2" in text
        assert text.count("superstep,") == 1

    run(main())


def test_a_cap_that_could_not_be_read_is_no_number_and_no_window(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        world.use(0.5, 0, 4)
        world.use(0.5, 4, 8, cap_cores=None)
        assert windows(world) == [(3.0, 0.5, False)]
        assert [sorted(set(fields) & {"cap_cores", "wanted_cores"}) for _, fields in world.points("guest")] == [
            *[["cap_cores", "wanted_cores"]] * 4, *[["wanted_cores"]] * 4
        ]  # fmt: skip

    run(main())


def test_windows_that_a_drift_ended_do_not_count_as_errors_of_caps() -> None:
    good = CapWindow("eatcpu", 0.5, 0.51, 10.0)
    assert cap_error_pp([good, CapWindow("eatcpu", 0.5, 0.9, 10.0, drifted=True)]) == (pytest.approx(1.0), 1)
    assert cap_error_pp([CapWindow("eatcpu", 0.5, 0.9, 10.0, drifted=True)]) == (None, 0)


def test_samples_that_an_agent_gave_up_are_told_once(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        for second, dropped in enumerate((0, 5, 5, 8)):
            world.sample(second, guest(second, 0), dropped=dropped)
        world.sample(9, guest(9, 0), dropped=2, boot="b2")
        assert [line.split(" samples")[0] for line in world.lines] == [
            "node n0 lost 5", "node n0 lost 3", "node n0 lost 2"
        ]  # fmt: skip
        world.directory.close()

    run(main())


def test_what_an_agent_could_not_send_at_once_is_told_and_in_the_journal(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        for second, refused in enumerate((0, 5, 5, 8)):
            world.sample(second, guest(second, 0), refused=refused)
        assert world.lines == [
            f"node n0 could not send at once, {count} times: too much waited for the broker" for count in (5, 3)
        ]
        world.directory.close()
        entries = read_journal(world.directory.path / "events.jsonl")
        assert [(entry["kind"], entry["refused"]) for entry in entries] == [("unsent", 5), ("unsent", 3)]

    run(main())


def test_a_guest_that_was_healed_is_told_and_in_the_journal(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        detail: dict[str, object] = {"silent_s": 31.4, "attachments": 1}
        world.tracker.guest_event(
            0, report_of(GuestEvent(node="n0", guest="g", event="healed", mono_ns=0, detail=detail))
        )
        world.directory.close()
        assert [line.partition(" on ")[2] for line in world.lines] == ["n0 reports again after 31 s of silence"]
        (entry,) = read_journal(world.directory.path / "events.jsonl")
        assert (entry["kind"], entry["event"], entry["detail"]) == ("guest", "healed", detail)

    run(main())


def test_iterations_since_the_last_point_become_a_point(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)

        def steps(number: int, longest_s: float, compute_s: float, comm_s: float) -> Supersteps:
            return Supersteps(steps=number, longest_s=longest_s, compute_s=compute_s, comm_s=comm_s)

        world.sample(1, guest(0, 0, None))  # a program that reports no iterations
        world.sample(2, guest(4, 0, steps(4, 0.5, 0.8, 0.2)))
        world.sample(3, guest(4, 0, steps(4, 0.0, 0.8, 0.2)))  # no iteration ended
        world.sample(4, guest(14, 0, steps(14, 0.125, 1.3, 0.7)))
        world.sample(3.5, guest(9, 0, steps(9, 0.125, 1.0, 0.5)), late=True, node="n0")  # the last point already has it
        world.sample(5, guest(6, 0, steps(6, 0.1, 0.9, 0.3)))  # from an earlier image
        world.sample(6, guest(8, 0, steps(8, 0.1, 1.0, 0.4)))
        await asyncio.sleep(7)
        detail = {"units": 10, "checksum": "ab", "steps": 10, "longest_s": 0.2, "compute_s": 1.2, "comm_s": 0.5}
        world.tracker.guest_event(
            0, report_of(GuestEvent(node="n0", guest="g", event="done", mono_ns=0, detail=detail))
        )
        world.sample(6.5, guest(9, 0, steps(9, 0.1, 1.1, 0.4)), late=True)  # the last point has it, too
        expected = [
            (2, 4, 0.25, 0.5, 0.8, 0.2),
            (4, 10, 0.1, 0.125, 0.5, 0.5),
            (6, 2, 0.1, 0.1, 0.1, 0.1),
            (7, 2, 0.15, 0.2, 0.2, 0.1),
        ]
        names = ("steps", "mean_s", "max_s", "compute_s", "comm_s")
        found = [(at_s, *(fields[name] for name in names)) for at_s, fields in world.points("superstep")]
        assert found == [pytest.approx(row) for row in expected]

    run(main())


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 2), st.floats(0, 2)), max_size=20))
def test_points_of_iterations_add_up_to_all_of_them(parts):
    meter, points = StepMeter(), []
    steps, compute_s, comm_s = 0, 0.0, 0.0
    for number, (more, computing_s, talking_s) in enumerate(parts):
        steps += more
        compute_s += computing_s if more else 0
        comm_s += talking_s if more else 0
        found = Supersteps(steps=steps, longest_s=0.0, compute_s=compute_s, comm_s=comm_s)
        fields = meter.advance("g", number, found)
        assert (fields is None) == (more == 0)
        assert meter.advance("g", number, found) is None
        points += [fields] if fields is not None else []
    for name, whole in (("steps", steps), ("compute_s", compute_s), ("comm_s", comm_s)):
        assert sum(point[name] for point in points) == pytest.approx(whole)
    assert all(point["max_s"] >= point["mean_s"] for point in points)
