"""Every failed job has a code in the journal, written by the part of the testbed that knows the failure."""

from __future__ import annotations

import ast
import asyncio
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from support.control.disturbed import Disturbed
from support.control.interrupting import Interrupting
from support.control.rehearsal import five_jobs, movers, rehearse

import testbed
from node_agent.drivers.null import NullDriver
from node_agent.drivers.protocol import DriverError, DriverEvent
from node_agent.images import ImageCopier
from node_agent.verifier import Answer, compare
from testbed.bus.answers import AnswerJournal
from testbed.bus.failure_codes import MEANINGS, Failure
from testbed.bus.messages import ImageRef, Ping, Reply, decode, encode
from testbed.bus.requests import CommandFailedError, NoAnswerError
from testbed.bus.results import Verdicts
from testbed.control.recorder import Recorder
from testbed.errors import FailureCode
from testbed.lab.fleet import NodeLostError
from testbed.lab.saving import SaveError
from testbed.measure.reasons import reason_of
from testbed.measure.rundir import RunDirectory
from testbed.run import events
from testbed.scheduling.workload.jobs import Job

PACKAGES = (Path(testbed.__file__).parent, Path(testbed.__file__).parents[1] / "node_agent")
LIVE = {"extras": "whole,live", "migration": {"mechanism": "live"}}


def codes(journal: list[dict]) -> dict[int, str]:
    """Return the code of each job that failed."""
    return {entry["job"]: entry["code"] for entry in journal if entry["kind"] == "job" and entry["state"] == "failed"}


def breaks(monkeypatch: pytest.MonkeyPatch, method: str, error: Callable[[], Exception], of: str = "") -> None:
    """Let a method of the driver fail for guests whose name contains `of`, once the calibration is over."""
    original = getattr(NullDriver, method)

    async def broken(self: NullDriver, first: object, *arguments: object) -> object:
        guest = first if isinstance(first, str) else first.guest
        if "alone" not in guest and of in guest:
            raise error()
        return await original(self, first, *arguments)

    monkeypatch.setattr(NullDriver, method, broken)


# --- each way in which a job fails


def test_a_guest_that_ends_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = NullDriver._begin

    def die(self: NullDriver, guest: str) -> None:
        begin(self, guest)
        if "-j1-" in guest and "alone" not in guest:
            self._tell(DriverEvent(guest, "failed", 0, {"reason": "node n was lost (silent for 9 s)"}))

    monkeypatch.setattr(NullDriver, "_begin", die)
    result, journal = rehearse(tmp_path, five_jobs())
    assert codes(journal) == {1: "guest-failed"}
    assert result.summary["failure_codes"] == {"1": "guest-failed"}
    assert result.summary["failed"] == {"1": "task 0: node n was lost (silent for 9 s)"}


@pytest.mark.parametrize(
    ("told", "code"),
    [("wrong-result", "wrong-result"), ("no-progress", "no-progress"), ("lease-lost", "lease-lost"),
     ("of-a-later-version", "guest-failed"), ("", "guest-failed"), (7, "guest-failed"), (["x"], "guest-failed")],
)  # fmt: skip
def test_a_code_that_an_agent_tells_of_a_guest_is_taken_if_it_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: object, code: str
) -> None:
    begin = NullDriver._begin

    def die(self: NullDriver, guest: str) -> None:
        begin(self, guest)
        if "-j1-" in guest and "alone" not in guest:
            self._tell(DriverEvent(guest, "failed", 0, {"reason": "it broke", "code": told}))

    monkeypatch.setattr(NullDriver, "_begin", die)
    _, journal = rehearse(tmp_path, five_jobs())
    assert codes(journal) == {1: code}


@pytest.mark.parametrize(
    ("method", "jobs", "code"),
    [("start", {1, 2, 3, 4, 5}, "start-failed"), ("mpi_join", {2, 4}, "start-failed"), ("set_cap", None, "cap-failed"),
     ("save", None, "save-failed"), ("hold", None, "save-failed")],
)  # fmt: skip
def test_operations_that_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, jobs: set[int] | None, code: str
) -> None:
    breaks(monkeypatch, method, lambda: DriverError("node n was lost (silent for 9 s)"))
    _, journal = rehearse(tmp_path, five_jobs())
    found = codes(journal)
    assert set(found.values()) == {code}
    assert jobs is None or set(found) == jobs


def interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **changes: object) -> dict[int, str]:
    """Return the codes of a run in which each job is saved, and restored on other nodes."""
    monkeypatch.setattr("support.control.rehearsal.parse", lambda name, _period_s: Interrupting(name, 60.0))
    jobs = [Job(1, 0, 1, 1.0, 0.4, 1200), Job(2, 60, 3, 0.5, 0.4, 900)]
    return codes(rehearse(tmp_path, jobs, policy="Interrupting", **changes)[1])


@pytest.mark.parametrize("method", ["restore", "mpi_join"])
def test_restores_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    original = getattr(NullDriver, method)
    saved: set[str] = set()
    save = NullDriver.save

    async def note(self: NullDriver, guest: str, at: int | None, image: Path) -> object:
        saved.add(guest)
        return await save(self, guest, at, image)

    async def broken(self: NullDriver, first: object, *arguments: object) -> None:
        if (first if isinstance(first, str) else first.guest) in saved:
            raise DriverError("image x.img: No such file or directory")  # a driver's error: the image itself is fine
        await original(self, first, *arguments)

    monkeypatch.setattr(NullDriver, "save", note)
    monkeypatch.setattr(NullDriver, method, broken)
    found = interrupted(tmp_path, monkeypatch)
    assert found == ({1: "restore-failed", 2: "restore-failed"} if method == "restore" else {2: "restore-failed"})


def test_transfers_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node_agent.images.shutil.copyfile", broken)
    assert interrupted(tmp_path, monkeypatch) == {1: "transfer-failed", 2: "transfer-failed"}


def broken(*_paths: Path) -> None:
    raise OSError(5, "Input/output error")


def unlinked(image: Path) -> None:
    image.unlink()


def damaged(image: Path) -> None:
    image.write_bytes(b"{}")


@pytest.mark.usefixtures("agents_are_robbed")
@pytest.mark.parametrize(
    ("spoil", "at"), [(unlinked, "source"), (unlinked, "target"), (damaged, "source"), (damaged, "target")]
)
def test_images_that_are_gone_or_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], None], at: str
) -> None:
    """The job of three tasks has one of them on the same node before and after, without a transfer."""
    save, fetch = NullDriver.save, ImageCopier.fetch

    async def spoiled(self: NullDriver, guest: str, at: int | None, image: Path) -> object:
        report = await save(self, guest, at, image)
        spoil(image)
        return report

    async def spoiled_after(self: ImageCopier, image: ImageRef, host: str, port: int, ticket: str) -> dict[str, object]:
        found = await fetch(self, image, host, port, ticket)
        spoil(self._store.path(image.image))
        return found

    if at == "source":
        monkeypatch.setattr(NullDriver, "save", spoiled)
    else:
        monkeypatch.setattr(ImageCopier, "fetch", spoiled_after)
    assert interrupted(tmp_path, monkeypatch) == {1: "image-lost", 2: "image-lost"}


def test_a_guest_that_is_lost_in_a_live_migration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lose(self: NullDriver, guest: str, *_limits: object) -> None:
        await self.stop(guest)
        raise DriverError("connection lost")

    monkeypatch.setattr(NullDriver, "migrate", lose)
    _, journal = rehearse(tmp_path, movers(), policy="/per/OPT=MIN", **LIVE)
    assert set(codes(journal).values()) == {"migrate-failed"}


def test_a_wrong_result_that_the_controller_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def found(*_arguments: object) -> Verdicts:
        return Verdicts(4, {2: "task 1: it is done with checksum 1; its work comes to 2"})

    monkeypatch.setattr("testbed.control.session.check_results", found)
    _, journal = rehearse(tmp_path, five_jobs())
    assert codes(journal) == {2: "wrong-result"}


def test_a_wrong_result_that_an_agent_finds_has_its_code() -> None:
    done = DriverEvent("g", "done", 0, {"checksum": "1"})
    assert compare(done, Answer("2")).detail["code"] == "wrong-result"
    assert "code" not in compare(done, Answer("1")).detail


# --- nodes and agents that go away


def test_what_a_node_was_asked_when_it_was_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saves wait for a node that is cut off; the reason is then the loss of the node, and not the failed save."""
    world: list[Disturbed] = []

    async def cut(self: NullDriver, *_arguments: object) -> None:
        world[0].cut(200.0, "agent-node-0", "agent-node-1")
        await asyncio.Event().wait()  # until the agent aborts the command

    monkeypatch.setattr(NullDriver, "save", cut)
    world.append(Disturbed(lambda _world: None))
    summary, journal = world[0].run(tmp_path, five_jobs())
    assert summary["failed"]
    assert set(codes(journal).values()) <= {"node-lost", "lease-lost", "does-not-fit"}
    assert "node-lost" in codes(journal).values()


@pytest.mark.parametrize(
    ("status", "told", "code"),
    [("failed", "image-lost", "image-lost"), ("failed", "", None), ("failed", "of-a-later-version", None),
     ("cancelled", "agent-restarted", "agent-restarted")],
)  # fmt: skip
def test_the_error_of_a_command_has_the_code_of_its_reply(status: str, told: str, code: str | None) -> None:
    reply = Reply(id="1", node="n", status=status, error="no", code=told)
    assert CommandFailedError("n", Ping(), "no", reply).failure_code == code
    assert NoAnswerError("n", Ping(), "no").failure_code is None
    assert SaveError("1 of 2 tasks", CommandFailedError("n", Ping(), "no", reply)).failure_code == code
    assert pickle.loads(pickle.dumps(SaveError("no", NodeLostError("gone")))).failure_code == "node-lost"  # noqa: S301


def test_replies_of_agents_without_codes_are_read() -> None:
    plain = encode(Reply(id="1", node="n", status="failed", error="no")).replace(b',"code":""', b"")
    assert b"code" not in plain
    assert decode(Reply, plain).code == ""


def test_a_command_that_a_killed_agent_had_begun_has_the_code_of_a_restart(tmp_path: Path) -> None:
    with AnswerJournal(tmp_path / "replies") as journal:
        journal.begin(Reply(id="1", node="n", status="accepted"))
    with AnswerJournal(tmp_path / "replies") as journal:
        assert journal.get("1").code == "agent-restarted"


def test_an_agent_whose_lease_ran_out_tells_so(tmp_path: Path) -> None:
    """The controller is cut off until its lease has expired, and reconnects before it declares the nodes lost."""
    quick = {"lease_ttl_s": 20.0, "node_silence_s": 100.0, "node_lost_s": 300.0}
    world = Disturbed(lambda world: world.cut(40.0, *(c for c in world.clients if not c.startswith("agent"))))
    _, journal = world.run(tmp_path, [Job(1, 0, 1, 1.0, 0.4, 9000)], deadlines=quick)
    assert codes(journal) == {1: "lease-lost"}


# --- all callers


def calls(name: str) -> list[tuple[Path, ast.Call]]:
    """Return every call of a method or function of that name in the packages."""
    found = []
    for path in sorted(file for package in PACKAGES for file in package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = isinstance(node, ast.Call) and (getattr(node.func, "attr", "") or getattr(node.func, "id", ""))
            if named == name:
                found.append((path, node))
    return found


def is_text(node: ast.expr, text: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == text


def makes_event(path: Path, call: ast.Call) -> bool:
    """Whether a call of `Job` makes an event, and not a job of the workload."""
    if isinstance(call.func, ast.Attribute):
        return ast.unparse(call.func) == "events.Job"
    imports = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom))
    return any(each.module == events.__name__ and "Job" in [name.name for name in each.names] for each in imports)


def test_one_function_writes_the_entries_of_jobs_and_that_of_failed_ones_demands_a_code() -> None:
    of_jobs = [path.name for path, call in calls("Job") if makes_event(path, call)]
    assert of_jobs == ["recorder.py"], "entries of jobs are written in one place"
    assert get_type_hints(Recorder.journal)["event"] == events.Event, "mypy refuses entries of no kind"
    assert get_type_hints(RunDirectory.journal)["event"] == events.Event
    assert not [path.name for path, call in calls("Unknown") if path.parent.name == "control"]
    assert "failed" not in get_args(get_type_hints(Recorder.job)["state"]), "mypy refuses this state"
    failed = [node for _, node in calls("_job") if any(is_text(word, "failed") for word in node.args)]
    assert len(failed) == 1
    assert "why.code.value" in ast.unparse(failed[0])
    assert get_type_hints(Recorder.fail)["why"] is Failure
    assert get_type_hints(Failure)["code"] is FailureCode


def test_texts_are_classified_by_the_reader_of_old_journals_alone() -> None:
    assert {path.name for path, _ in calls("classify")} <= {"reasons.py"}
    for code, meaning in MEANINGS.items():
        assert meaning
        assert reason_of("something", code.value).code == code
