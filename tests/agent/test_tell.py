"""What is told of guests while results are still being checked."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import msgspec
import pytest
from support.live import HANG_S

from node_agent import verifier as verifying
from node_agent.drivers.protocol import Happening
from node_agent.tell import tell
from node_agent.verifier import Answer, Verifier
from testbed.bus.messages import GuestEvent, GuestSpec, ProgramSpec
from testbed.control.cluster import LiveJob, Phase
from testbed.control.tracker import Tracker
from testbed.suspicious_acts import ActKind
from testbed.workload.jobs import Job

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
        happenings: asyncio.Queue[Happening] = asyncio.Queue()
        heard = asyncio.Event()

        async def publish(happening: Happening) -> None:
            told.append(happening)
            heard.set()

        async def until(count: int) -> None:
            async with asyncio.timeout(HANG_S):
                while len(told) < count:
                    heard.clear()
                    await heard.wait()

        telling = asyncio.create_task(tell(happenings, verifier, publish, gone.append))
        await happenings.put(Happening("a", "done", 7, {"checksum": found}))
        await happenings.put(Happening("b", "progress", 8, {"units": 1}))
        await until(2)
        assert [(each.guest, each.event) for each in told] == [("a", "ended"), ("b", "progress")]
        assert gone == ["a"]
        known.set()
        await until(3)
        assert (told[2].guest, told[2].event, told[2].mono_ns) == ("a", end, 7)
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)

    asyncio.run(main())


def quiet_recorder(entries: list[str]) -> SimpleNamespace:
    return SimpleNamespace(
        journal=lambda kind, **_entry: entries.append(kind), now_s=lambda: 1.0, point=lambda *_: None,
        node_names=["n0"], anchor_ns=0, doubt=lambda *_: None,
    )  # fmt: skip


def test_an_end_that_is_told_again_counts_once_and_that_of_a_second_life_too() -> None:
    """A job that starts again from its images keeps the names of its guests."""
    specs = tuple(msgspec.structs.replace(SPEC, guest=f"a{task}", task=task) for task in (0, 1))
    live = LiveJob(Job(1, 0.0, 2, 1.0, 0.1, 10.0), specs, 1.0, units_done=[0, 0])
    live.phase, live.running_on = Phase.RUNNING, (0, 0)
    entries, done = list[str](), list[int]()
    tracker = Tracker(
        SimpleNamespace(jobs={1: live}), quiet_recorder(entries), lambda _live: None,
        lambda job: done.append(job.job_id), lambda _live, _why: None,
    )  # fmt: skip
    first = GuestEvent(node="n0", guest="a0", event="done", mono_ns=1, detail={"units": 10, "checksum": RIGHT})
    for _ in range(3):
        tracker.guest_event(0, first)
    assert (entries, live.finished_tasks) == (["guest"], {0})
    live.begin_again((0, 0))
    tracker.follow(live)
    live.phase, live.running_on = Phase.RUNNING, (0, 0)
    tracker.guest_event(0, first)  # the first life's, told again
    assert live.finished_tasks == set()
    for guest in ("a0", "a1"):
        tracker.guest_event(0, msgspec.structs.replace(first, guest=guest, mono_ns=2))
    assert (live.finished_tasks, done) == ({0, 1}, [1])


@pytest.mark.parametrize("end", ["done", "failed"])
def test_a_job_is_done_at_its_end_and_fails_if_its_result_is_found_wrong(end: str) -> None:
    live = LiveJob(Job(1, 0.0, 1, 1.0, 0.1, 10.0), (SPEC,), 1.0, units_done=[0])
    live.phase, live.running_on = Phase.RUNNING, (0,)
    calls: list[str] = []
    suspects: list[tuple[int, ActKind]] = []
    recorder = quiet_recorder([])
    recorder.suspect = lambda node, kind, _what: suspects.append((node, kind))

    def done(job: LiveJob) -> None:
        calls.append("done")
        job.phase, job.running_on = Phase.DONE, None

    tracker = Tracker(
        SimpleNamespace(jobs={1: live}), recorder, lambda _live: None, done,
        lambda _live, why: calls.append(why.text), lambda _live: calls.append("checked"),
    )  # fmt: skip
    detail = {"units": 10, "checksum": RIGHT}
    event = GuestEvent(node="n0", guest="a", event="ended", mono_ns=1, detail=detail)
    tracker.guest_event(0, event)
    assert calls == ["done"]
    assert live.unchecked == {0: 0}
    forged = GuestEvent(node="n1", guest="a", event="done", mono_ns=1, detail=detail)
    for word in ("failed", "done"):  # of another node, which has no say about this guest
        tracker.guest_event(1, msgspec.structs.replace(forged, event=word))
    assert (calls, live.unchecked) == (["done"], {0: 0})
    assert suspects == [(1, ActKind.FOREIGN_GUEST)] * 2
    late = msgspec.structs.replace(event, event=end, detail={"reason": "it is wrong"})
    tracker.guest_event(0, late)
    assert calls[1:] == (["checked"] if end == "done" else ["task 0: it is wrong", "checked"])
    assert not live.unchecked
