"""Reports about guests while their results are still being checked."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import msgspec
import pytest
from support.entries import event as entry_of
from support.live import HANG_S
from support.live_jobs import live_job, quiet_recorder

from node_agent import verifier as verifying
from node_agent.drivers.protocol import DriverEvent
from node_agent.guest_events import tell
from node_agent.verifier import Answer, Verifier
from testbed.bus.failure_codes import Failure
from testbed.bus.guest_details import report_of
from testbed.bus.messages import GuestEvent, GuestSpec, ProgramSpec
from testbed.bus.suspicious_acts import ActKind
from testbed.control.cluster import Cluster, LiveJob
from testbed.control.executor import Executor
from testbed.control.losses import Losses
from testbed.control.tracker import Tracker
from testbed.lab.operations import Operations
from testbed.run import events
from testbed.run.phases import Phase
from testbed.scenario.schema import DeadlinesTable
from testbed.scheduling.workload.jobs import Job

RIGHT, WRONG = "1" * 16, "0" * 16
SPEC = GuestSpec(
    guest="a", run="t", job=1, task=0, cpu_cores=1.0, memory_mib=10,
    program=ProgramSpec(name="eatcpu", work_units=10, units_per_iteration=10, seed=1),
)  # fmt: skip


@pytest.mark.parametrize(("found", "end"), [(RIGHT, "done"), (WRONG, "failed")])
def test_an_end_is_told_before_its_result_is_known_and_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch, found: str, end: str
) -> None:
    async def main() -> None:
        known, told, gone = asyncio.Event(), [], []
        loop = asyncio.get_running_loop()

        def slow(*_: object) -> Answer:
            asyncio.run_coroutine_threadsafe(known.wait(), loop).result(HANG_S)
            return Answer(RIGHT)

        monkeypatch.setattr(verifying, "work_out", slow)
        verifier = Verifier()
        verifier.begin(SPEC)
        driver_events: asyncio.Queue[DriverEvent] = asyncio.Queue()
        heard = asyncio.Event()

        async def publish(driver_event: DriverEvent) -> None:
            told.append(driver_event)
            heard.set()

        async def until(count: int) -> None:
            async with asyncio.timeout(HANG_S):
                while len(told) < count:
                    heard.clear()
                    await heard.wait()

        telling = asyncio.create_task(tell(driver_events, verifier, publish, gone.append))
        await driver_events.put(DriverEvent("a", "done", 7, {"checksum": found}))
        await driver_events.put(DriverEvent("b", "progress", 8, {"units": 1}))
        await until(2)
        assert [(each.guest, each.event) for each in told] == [("a", "ended"), ("b", "progress")]
        assert gone == ["a"]
        known.set()
        await until(3)
        assert (told[2].guest, told[2].event, told[2].mono_ns) == ("a", end, 7)
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)

    asyncio.run(main())


def test_an_end_that_is_told_again_counts_once_and_that_of_a_second_life_too() -> None:
    """A job that starts again from its images keeps the names of its guests."""
    specs = tuple(msgspec.structs.replace(SPEC, guest=f"a{task}", task=task) for task in (0, 1))
    entries = list[events.Event]()
    recorder = quiet_recorder(entries.append)
    live = live_job(Job(1, 0.0, 2, 1.0, 0.1, 10.0), specs, recorder.history, phase=Phase.RUNNING, running_on=(0, 0))
    tracker = Tracker(Cluster([live], recorder.history), recorder)
    recorder.ledger.listen(tracker.hear)
    told = {"units": 10, "checksum": RIGHT}
    first = report_of(GuestEvent(node="n0", guest="a0", event="done", mono_ns=1, detail=told))
    for _ in range(3):
        tracker.guest_event(0, first)
    assert ([events.kind_of(entry) for entry in entries], live.state.finished_tasks) == (["guest"], {0})
    again = {"kind": "job", "state": "again", "images_on": [0, 0]}
    for entry in ({"kind": "job", "state": "withdrawn"}, {"kind": "cleared"}, again):
        recorder.journal(entry_of({"job": 1, **entry}))
    live.state.phase, live.state.running_on = Phase.RUNNING, (0, 0)
    tracker.guest_event(0, first)  # the repeated report of the first life
    assert live.state.finished_tasks == set()
    for guest in ("a0", "a1"):
        tracker.guest_event(0, msgspec.structs.replace(first, guest=guest, mono_ns=2))
    assert live.state.finished_tasks == {0, 1}
    assert live.progress.units == [10, 10]


@pytest.mark.parametrize("end", ["done", "failed"])
def test_a_job_is_done_at_its_end_and_fails_if_its_result_is_found_wrong(end: str) -> None:
    async def main() -> None:
        suspects: list[tuple[int, ActKind]] = []
        entries: list[events.Event] = []

        def fail(live: LiveJob, why: Failure) -> None:
            recorder.journal(events.Job(1.0, 60.0, job=live.job_id, state="failed", code=why.code, detail=why.text))

        recorder = quiet_recorder(
            entries.append, suspect=lambda node, kind, _what: suspects.append((node, kind)), fail=fail,
            job=lambda live, state: recorder.journal(events.Job(1.0, 60.0, job=live.job_id, state=state)),
        )  # fmt: skip
        live = live_job(Job(1, 0.0, 1, 1.0, 0.1, 10.0), (SPEC,), recorder.history, phase=Phase.RUNNING, running_on=(0,))
        cluster = Cluster([live], recorder.history)
        operations = Operations(SimpleNamespace(), DeadlinesTable())
        executor = Executor(cluster, operations, SimpleNamespace(), recorder, [1000], 1)
        tracker = Tracker(cluster, recorder)
        losses = Losses(cluster, operations, executor, recorder, restarts=False)
        for hear in (tracker.hear, losses.hear, executor.hear):
            recorder.ledger.listen(hear)
        detail = {"units": 10, "checksum": RIGHT}
        event = GuestEvent(node="n0", guest="a", event="ended", mono_ns=1, detail=detail)
        tracker.guest_event(0, report_of(event))
        assert (live.state.phase, live.state.unchecked) == (Phase.DONE, {0: 0})
        forged = GuestEvent(node="n1", guest="a", event="done", mono_ns=1, detail=detail)
        for word in ("failed", "done"):  # from another node, which has no authority over this guest
            tracker.guest_event(1, report_of(msgspec.structs.replace(forged, event=word)))
        assert (live.state.phase, live.state.unchecked) == (Phase.DONE, {0: 0})
        assert suspects == [(1, ActKind.FOREIGN_GUEST)] * 2
        late = msgspec.structs.replace(event, event=end, detail={"reason": "it is wrong"})
        tracker.guest_event(0, report_of(late))
        assert not live.state.unchecked
        assert live.state.phase == end
        assert live.state.failure_text == ("" if end == "done" else "task 0: it is wrong")
        assert [entry.state for entry in entries if isinstance(entry, events.Job)] == (
            ["done"] if end == "done" else ["done", "failed"]
        )
        await executor.close()

    asyncio.run(main())
