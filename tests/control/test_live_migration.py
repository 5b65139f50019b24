"""Jobs that migrate live, in virtual time: memory is never over-committed, and no outcome loses a guest silently."""

from __future__ import annotations

import asyncio
import csv
import time
from collections.abc import Awaitable, Callable
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from support.control.rehearsal import BEST, Watcher, five_jobs, movers, rehearse
from support.control.rehearsal_checks import check_memory, check_one_operation_a_job, workloads

from node_agent.drivers.null import NullDriver
from node_agent.drivers.protocol import DriverError, MigrationReport
from testbed.bus.failure_codes import Failure
from testbed.bus.migration import Destination
from testbed.control.replay_decisions import replay_decisions
from testbed.errors import FailureCode
from testbed.lab.addresses import guest_addresses
from testbed.scheduling.workload.jobs import Job

LIVE = {"extras": "whole,live", "migration": {"mechanism": "live"}}
Migrate = Callable[[NullDriver, str, Destination, float, float], Awaitable[MigrationReport]]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(jobs=workloads())
def test_every_job_ends_and_nothing_is_over_committed(
    tmp_path_factory: pytest.TempPathFactory, jobs: list[Job]
) -> None:
    jobs = [job for job in jobs if job.tasks <= 3 * int(1 / job.mem_req_frac)]
    assume(jobs)
    result, journal = rehearse(tmp_path_factory.mktemp("run"), jobs, count=3, **LIVE)
    assert result.summary["done"] == len(jobs)
    check_memory(journal, jobs)
    check_one_operation_a_job(journal)
    assert replay_decisions(result.path)[1] == []


def moves(tmp_path: Path, **changes: object) -> tuple[dict, list[dict]]:
    result, journal = rehearse(tmp_path, movers(), policy="/per/OPT=MIN", **{**LIVE, **changes})
    check_memory(journal, movers())
    return result.summary, journal


def of(journal: list[dict], verb: str) -> list[dict]:
    return [entry for entry in journal if entry["kind"] == "outcome" and entry["verb"] == verb]


def test_a_running_job_moves_without_being_saved(tmp_path: Path) -> None:
    summary, journal = moves(tmp_path)
    assert summary["done"] == 5
    metrics = {name: metric["value"] for name, metric in summary["metrics"].items()}
    migrated = of(journal, "migrate")
    assert len(migrated) == metrics["live_migrations"] >= 1
    assert metrics["migrations"] >= metrics["live_migrations"]
    records = [e for e in journal if e["kind"] == "rescheduling" and e["mechanism"] == "live"]
    assert len(records) == len(migrated)
    for record in records:
        assert record["reason"] == "migration"
        assert record["downtime_s"] == pytest.approx(0.05)
        assert record["penalty_s"] == pytest.approx(record["downtime_s"] + record["first_progress_s"], abs=1e-5)
        assert record["live_s"] > record["downtime_s"]
        assert record["migrated_bytes"] > 0
        assert record["saved_bytes"] == 0
    assert metrics["live_downtime_max"] == pytest.approx(0.05)
    with (tmp_path / "run0" / "jobs.csv").open() as file:
        assert sum(int(row["live_migrations"]) for row in csv.DictReader(file)) == len(records)


def test_without_the_mechanism_or_the_capability_images_are_used(tmp_path: Path) -> None:
    for changes in ({"migration": {}}, {"extras": "whole"}):
        summary, journal = moves(tmp_path, **changes)
        assert summary["done"] == 5
        assert of(journal, "migrate") == []
        assert of(journal, "save")


def test_whole_jobs_are_released_together_and_the_skew_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hold the second task of a job 0.25 s late, and release it 0.5 s late, with clocks in virtual time."""
    hold, release = NullDriver.hold, NullDriver.release

    async def late_hold(self: NullDriver, guest: str) -> int | None:
        await asyncio.sleep(0.25 if guest.endswith("-t1") else 0)
        return await hold(self, guest)

    async def late_release(self: NullDriver, guest: str) -> None:
        await asyncio.sleep(0.5 if guest.endswith("-t1") else 0)
        await release(self, guest)

    monkeypatch.setattr(NullDriver, "hold", late_hold)
    monkeypatch.setattr(NullDriver, "release", late_release)
    clock = SimpleNamespace(
        monotonic_ns=time.monotonic_ns, time_ns=lambda: round(asyncio.get_running_loop().time() * 1e9)
    )
    monkeypatch.setattr("node_agent.agent.time", clock)
    jobs = five_jobs()
    result, journal = rehearse(tmp_path, jobs, extras="whole")
    assert result.summary["done"] == 5
    tasks = {job.job_id: job.tasks for job in jobs}
    for verb, skew, late_s in (("save", "hold_skew_s", 0.25), ("restore", "release_skew_s", 0.5)):
        entries = of(journal, verb)
        assert {tasks[entry["job"]] for entry in entries} == {1, 2}
        for entry in entries:
            expected_s = late_s if tasks[entry["job"]] > 1 else 0.0
            assert entry[skew] == pytest.approx(expected_s, abs=1e-6)


def broken(patch: pytest.MonkeyPatch, replacement: Callable[[Migrate], Migrate]) -> None:
    """Replace the driver's first migration."""
    real, first = NullDriver.migrate, iter([True])

    async def migrate(
        self: NullDriver, guest: str, to: Destination, budget_s: float, no_progress_s: float
    ) -> MigrationReport:
        chosen = replacement(real) if next(first, False) else real
        return await chosen(self, guest, to, budget_s, no_progress_s)

    patch.setattr(NullDriver, "migrate", migrate)


def test_a_migration_that_fails_falls_back_on_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def replacement(_real: Migrate) -> Migrate:
        async def fail(self: NullDriver, guest: str, to: Destination, budget_s: float, no_progress_s: float):
            raise DriverError(f"guest {guest}: nothing came nearer to its end for {no_progress_s:g} s")

        return fail

    broken(monkeypatch, replacement)
    summary, journal = moves(tmp_path)
    assert summary["done"] == 5
    (asked,) = [entry for entry in journal if entry["kind"] == "migration" and "error" in entry]
    assert (asked["at_source"], asked["at_target"]) == (True, False)
    (failed,) = [entry for entry in of(journal, "migrate") if not entry["ok"]]
    assert "nothing came nearer" in failed["error"]
    assert failed["job"] in {entry["job"] for entry in of(journal, "save")}


def test_a_guest_that_arrived_without_a_word_is_adopted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def replacement(real: Migrate) -> Migrate:
        async def mute(self: NullDriver, guest: str, to: Destination, budget_s: float, no_progress_s: float):
            await real(self, guest, to, budget_s, no_progress_s)
            raise DriverError("connection lost")

        return mute

    broken(monkeypatch, replacement)
    summary, journal = moves(tmp_path)
    assert summary["done"] == 5
    (asked,) = [entry for entry in journal if entry["kind"] == "migration" and "error" in entry]
    assert (asked["at_source"], asked["at_target"]) == (False, True)
    assert all(entry["ok"] for entry in of(journal, "migrate"))
    assert next(entry["counted"] for entry in journal if entry["kind"] == "migration" and "counted" in entry) is False


def test_a_guest_that_is_nowhere_fails_its_job_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def replacement(_real: Migrate) -> Migrate:
        async def lose(self: NullDriver, guest: str, to: Destination, budget_s: float, no_progress_s: float):
            await self.stop(guest)
            raise DriverError("connection lost")

        return lose

    broken(monkeypatch, replacement)
    summary, _ = moves(tmp_path)
    assert summary["done"] == 4
    (reason,) = summary["failed"].values()
    assert list(summary["failure_codes"].values()) == ["migrate-failed"]
    assert "at neither end of its migration" in reason
    assert "connection lost" in reason


def test_an_incoming_copy_beside_a_running_source_is_destroyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[tuple[NullDriver, str]] = []
    at_end: list[bool] = []

    def replacement(_real: Migrate) -> Migrate:
        async def half(self: NullDriver, guest: str, to: Destination, budget_s: float, no_progress_s: float):
            there = NullDriver.reachable[id(asyncio.get_running_loop()), to.uri]
            await there.start(self._guests[guest].spec, 0.0)
            copies.append((there, guest))
            raise DriverError("the stream broke")

        return half

    broken(monkeypatch, replacement)
    stop = NullDriver.stop

    async def note(self: NullDriver, guest: str) -> None:
        if (self, guest) in copies:
            at_end.append(guest in self._guests)
        await stop(self, guest)

    monkeypatch.setattr(NullDriver, "stop", note)
    summary, journal = moves(tmp_path)
    assert summary["done"] == 5
    (asked,) = [entry for entry in journal if entry["kind"] == "migration" and "error" in entry]
    assert (asked["at_source"], asked["at_target"]) == (True, True)
    assert at_end[0] is True


def test_a_guest_that_ends_on_its_way_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    def replacement(_real: Migrate) -> Migrate:
        async def end(self: NullDriver, guest: str, to: Destination, budget_s: float, no_progress_s: float):
            found = self._guests[guest]
            found.units = float(found.spec.program.work_units)
            self._done(found)
            ended.append(guest)
            raise DriverError(f"guest {guest} ended while it migrated")

        return end

    broken(monkeypatch, replacement)
    summary, journal = moves(tmp_path)
    assert ended
    assert summary["done"] == 5
    assert all(entry["ok"] for entry in of(journal, "migrate"))


def test_a_job_that_fails_while_it_migrates_leaves_no_guest_at_either_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from testbed.control.conductor import Conductor

    conductors: list[Conductor] = []
    run = Conductor.run

    async def remember(self: Conductor) -> None:
        conductors.append(self)
        await run(self)

    monkeypatch.setattr(Conductor, "run", remember)
    victims: set[int] = set()
    left: list[set[str]] = []

    def act(_picture: object) -> None:
        (conductor,) = conductors
        for live in conductor.cluster.active():
            if live.state.phase == "migrating" and not victims:
                victims.add(live.job_id)
                conductor._recorder.fail(live, Failure(FailureCode.GUEST_FAILED, "it was told to"))
        left.append(
            {
                sample.guest
                for driver in NullDriver.reachable.values()
                for sample in driver.sample()
                for job in victims
                if f"-j{job}-" in sample.guest
            }
        )

    result, _ = rehearse(tmp_path, movers(), policy="/per/OPT=MIN", watcher=Watcher(act), **LIVE)
    assert list(result.summary["failed"].values()) == ["it was told to"]
    assert result.summary["done"] == 4
    assert left[-1] == set()


def test_guests_of_a_run_have_addresses_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str] = {}

    def noting(make: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        async def note(self: NullDriver, spec, *args: object) -> None:
            assert seen.setdefault(spec.guest, spec.address) == spec.address
            await make(self, spec, *args)

        return note

    monkeypatch.setattr(NullDriver, "start", noting(NullDriver.start))
    monkeypatch.setattr(NullDriver, "restore", noting(NullDriver.restore))
    rehearse(tmp_path, five_jobs(), policy=BEST)
    assert any("alone" in guest for guest in seen)
    assert len(set(seen.values())) == len(seen)


def test_addresses_leave_out_what_is_reserved() -> None:
    given = list(islice(guest_addresses("10.77.0.0/16"), 254 * 256 + 1))
    assert given[0] == given[-1] == "10.77.1.0/16"
    assert given[-2] == "10.77.254.255/16"
    assert len(set(given)) == 254 * 256
    wide = list(islice(guest_addresses("10.0.0.0/14"), 255 * 256))
    assert "10.1.0.0/14" in wide
    assert "10.0.255.0/14" not in wide
