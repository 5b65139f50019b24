"""The whole controller in virtual time: decisions are carried out, nothing is over-committed, all is journalled."""

from __future__ import annotations

import asyncio
import csv
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.control.rehearsal import BEST, Watcher, five_jobs, rehearse, scenario
from support.control.rehearsal_checks import check_memory, check_one_operation_a_job, workloads

from node_agent.drivers.null import NullDriver
from node_agent.drivers.protocol import DriverError
from testbed.control.admission import check_disk, check_jobs
from testbed.control.replay_decisions import replay_decisions
from testbed.control.session import run_session
from testbed.errors import UserError
from testbed.lab.bring_up import dry_lab
from testbed.lab.virtual_time import run_in_virtual_time
from testbed.measure.rundir import read_journal
from testbed.run.journal import seal
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.workload.jobs import Job


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    jobs=workloads(),
    policy=st.sampled_from(
        [
            *(BEST, "GreedyP */OPT=AVG", "/per/OPT=MIN", "Greedy */OPT=MIN", "/stretch-per/OPT=MAX"),
            *("FCFS", "EASY", "GREEDY", "GREEDY-PMTN-MIGR"),
        ]
    ),
)
def test_every_job_ends_and_nothing_is_over_committed(
    tmp_path_factory: pytest.TempPathFactory, jobs: list[Job], policy: str
) -> None:
    batch = policy in ("FCFS", "EASY")
    jobs = [job for job in jobs if job.tasks <= (3 if batch else 3 * int(1 / job.mem_req_frac))]
    if not jobs:
        return
    result, journal = rehearse(tmp_path_factory.mktemp("run"), jobs, count=3, policy=policy)
    assert result.summary["done"] == len(jobs)
    check_memory(journal, jobs)
    check_one_operation_a_job(journal)
    count, different = replay_decisions(result.path)
    assert count > 0
    assert different == []
    with (result.path / "jobs.csv").open() as file:
        for row in csv.DictReader(file):
            assert float(row["stretch"]) >= 1 - 1e-6
            assert float(row["virtual_time_s"]) == pytest.approx(float(row["run_time_s"]), rel=0.01, abs=0.1)


def test_a_busy_pair_of_nodes_preempts_restores_and_moves(tmp_path: Path) -> None:
    result, journal = rehearse(tmp_path, five_jobs())
    metrics = {name: metric["value"] for name, metric in result.summary["metrics"].items()}
    assert metrics["preemptions"] >= 2
    assert metrics["restores"] == metrics["preemptions"] + metrics["migrations"]
    assert metrics["restores_on_another_node"] >= 1
    assert metrics["degradation"] >= 1
    costs = [entry for entry in journal if entry["kind"] == "rescheduling"]
    assert len(costs) == metrics["restores"]
    for cost in costs:
        assert (cost["moved_tasks"] > 0) == (cost["transferred_bytes"] > 0)
        parts = sum(cost[f"{part}_s"] for part in ("save", "wait", "transfer", "restore", "first_progress"))
        assert cost["penalty_s"] == pytest.approx(parts, abs=1e-5)
        assert cost["restored_bytes"] == cost["saved_bytes"] > 0
    assert sum(cost["transferred_bytes"] > 0 for cost in costs) == metrics["restores_on_another_node"]


def test_an_interruption_before_the_first_progress_is_told_without_a_penalty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guests take a minute from their restore to their first progress; some are interrupted again within this time."""
    begin = NullDriver._begin

    def late(driver: NullDriver, guest: str) -> None:
        found = driver._get(guest)
        if found.units and found.runs:
            asyncio.get_running_loop().call_later(60.0, lambda: guest in driver._guests and begin(driver, guest))
            driver._arm(found)
        else:
            begin(driver, guest)

    monkeypatch.setattr(NullDriver, "_begin", late)
    result, journal = rehearse(tmp_path, five_jobs(), policy="/stretch-per/OPT=MAX")
    metrics = {name: metric["value"] for name, metric in result.summary["metrics"].items()}
    cut_off = [entry for entry in journal if entry["kind"] == "rescheduling_cut_off"]
    told = [entry for entry in journal if entry["kind"] == "rescheduling"]
    assert len(cut_off) == metrics["reschedulings_cut_off"] >= 1
    assert all(entry["restore_s"] + entry["first_progress_s"] < 60.0 for entry in cut_off)
    assert result.summary["done"] == 5
    assert len(told) + len(cut_off) <= metrics["restores"] == metrics["preemptions"] + metrics["migrations"]


def test_a_job_that_does_not_fit_is_tried_again_at_the_instants_of_its_policy(tmp_path: Path) -> None:
    long, small, big = Job(1, 10, 1, 1.0, 0.6, 3000), Job(2, 20, 1, 1.0, 0.3, 330), Job(3, 30, 1, 1.0, 0.4, 300)
    _, journal = rehearse(tmp_path, [long, small, big], count=1, policy="GREEDY")
    tries = [
        entry["view"]["time_s"] for entry in journal if entry["kind"] == "decision" and 3 in entry["event"]["submitted"]
    ]
    assert tries == pytest.approx([30, 32, 36, 44, 60, 92, 156, 284, 540, 1052], abs=0.01)
    when = {(entry["job"], entry["state"]): entry["trace_s"] for entry in journal if entry["kind"] == "job"}
    assert when[2, "done"] == pytest.approx(680, abs=0.01)
    assert when[3, "running"] == pytest.approx(1052, abs=0.01)


def test_the_same_input_gives_the_same_run(tmp_path: Path) -> None:
    def essence(journal: list[dict]) -> list[tuple]:
        return [
            (e["kind"], e.get("job"), e.get("verb"), e.get("nodes"), e["trace_s"])
            for e in journal
            if e["kind"] in ("intent", "job")
        ]

    _, first = rehearse(tmp_path, five_jobs())
    _, second = rehearse(tmp_path, five_jobs())
    assert essence(first) == essence(second)


def test_images_are_gone_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[Path] = []
    close = NullDriver.close

    async def look(self: NullDriver) -> None:
        left.extend(self.image_dir.glob("*.img*"))
        await close(self)

    open_ = NullDriver.open

    async def remember(self: NullDriver, budget, tell):
        self.image_dir = budget.image_dir
        return await open_(self, budget, tell)

    monkeypatch.setattr(NullDriver, "close", look)
    monkeypatch.setattr(NullDriver, "open", remember)
    result, _ = rehearse(tmp_path, five_jobs())
    assert result.summary["metrics"]["preemptions"]["value"] > 0
    assert left == []


def test_a_save_that_fails_once_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = NullDriver.save
    failures = iter([True])

    async def flaky(self: NullDriver, guest: str, at: int | None, image: Path):
        if next(failures, False):
            raise DriverError("no space left")
        return await save(self, guest, at, image)

    monkeypatch.setattr(NullDriver, "save", flaky)
    result, journal = rehearse(tmp_path, five_jobs())
    assert result.summary["done"] == 5
    assert next(failures, None) is None, "the call failed once"
    assert all(entry["ok"] for entry in journal if entry["kind"] == "outcome")


def test_a_cap_that_another_one_is_in_force_after_is_set_again_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_cap = NullDriver.set_cap
    answers = iter([1.07])

    async def lying(self: NullDriver, guest: str, cap_cores: float) -> float:
        found = await set_cap(self, guest, cap_cores)
        return next(answers, found)

    monkeypatch.setattr(NullDriver, "set_cap", lying)
    result, journal = rehearse(tmp_path, five_jobs())
    assert result.summary["done"] == 5
    (retry,) = [entry for entry in journal if entry["kind"] == "retry"]
    expected = r"node node-0: the cap of guest \S+ is 1\.07 cores after it was set: expected 0\.\d+ cores"
    assert re.fullmatch(expected, retry["error"])
    intents = {entry["action"]: entry for entry in journal if entry["kind"] == "intent"}
    caps = [entry for entry in journal if entry["kind"] == "outcome" and entry["verb"] == "cap"]
    needs = {job.job_id: job.cpu_need_frac for job in five_jobs()}
    assert caps
    for outcome in caps:
        wanted = intents[outcome["action"]]["yield_frac"] * needs[outcome["job"]]
        assert outcome["caps_cores"] == pytest.approx([wanted] * len(outcome["nodes"]), abs=1e-5)


def test_a_start_that_fails_once_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = NullDriver.start
    failures = iter([True])

    async def flaky(self: NullDriver, spec, cap_cores: float) -> None:
        if spec.job == 2 and "alone" not in spec.guest and next(failures, False):
            raise DriverError("out of pids")
        await start(self, spec, cap_cores)

    monkeypatch.setattr(NullDriver, "start", flaky)
    result, journal = rehearse(tmp_path, five_jobs())
    assert result.summary["done"] == 5
    retries = [entry for entry in journal if entry["kind"] == "retry"]
    assert len(retries) == 1
    assert "out of pids" in retries[0]["error"]


def test_a_save_that_always_fails_fails_its_job_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = NullDriver.save

    async def broken(self: NullDriver, guest: str, at: int | None, image: Path):
        if "-j1-" in guest:
            raise DriverError("no space left")
        return await save(self, guest, at, image)

    monkeypatch.setattr(NullDriver, "save", broken)
    result, _ = rehearse(tmp_path, five_jobs())
    assert result.summary["done"] == 4
    assert "could not save" in result.summary["failed"]["1"]
    assert "no space left" in result.summary["failed"]["1"]
    assert result.summary["failure_codes"] == {"1": "save-failed"}


def test_a_start_that_fails_for_good_leaves_no_guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    join = NullDriver.mpi_join
    drivers: set[NullDriver] = set()

    async def broken(self: NullDriver, guest: str, session: str) -> None:
        drivers.add(self)
        if guest.endswith("j2-t1") and "alone" not in guest:
            raise DriverError("the rank does not come up")
        await join(self, guest, session)

    monkeypatch.setattr(NullDriver, "mpi_join", broken)
    at_end: list[str] = []
    watcher = Watcher(
        lambda _picture: at_end.append(",".join(s.guest for d in drivers for s in d.sample() if "-j2-" in s.guest))
    )
    result, _ = rehearse(tmp_path, five_jobs(), watcher=watcher)
    assert "rank does not come up" in result.summary["failed"]["2"]
    assert result.summary["failure_codes"] == {"2": "start-failed"}
    assert result.summary["done"] == 4
    assert at_end[-1] == ""


def test_a_lost_node_fails_its_jobs_and_the_others_go_on(tmp_path: Path) -> None:
    jobs = [
        Job(1, 0, 1, 1.0, 0.4, 1200),
        Job(2, 0, 1, 1.0, 0.4, 1200),
        Job(3, 1200, 1, 1.0, 0.4, 600),
        Job(4, 1300, 2, 1.0, 0.7, 60),
    ]
    agents: list = []
    from node_agent.agent import Agent

    run = Agent.run

    async def remember(self: Agent) -> None:
        agents.append(self)
        await run(self)

    def stop_one(picture) -> None:
        if picture.trace_s > 600 and picture.nodes[1].online:
            agents[1].stop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Agent, "run", remember)
        result, journal = rehearse(tmp_path, jobs, watcher=Watcher(stop_one))
    failed = result.summary["failed"]
    assert set(failed) == {"2", "4"}
    assert failed["2"] == "node node-1 is lost (its agent ended)"
    assert failed["4"] == "does not fit on the 1 nodes that are left"
    assert result.summary["failure_codes"] == {"2": "node-lost", "4": "does-not-fit"}
    (gone,) = (entry for entry in journal if entry["kind"] == "node")
    assert (gone["node"], gone["online"], gone["standing"]) == ("node-1", False, "lost")


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    chosen = scenario()
    path = tmp_path / "run"

    async def main() -> None:
        task = asyncio.ensure_future(
            run_session(
                chosen, parse(BEST), five_jobs(), path, dry_lab, Watcher(lambda p: p.trace_s > 900 and task.cancel())
            )
        )
        with pytest.raises(asyncio.CancelledError):
            await task
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not others

    run_in_virtual_time(main())
    summary = json.loads((path / "summary.json").read_text())
    assert summary["complete"] is False
    assert summary["metrics"]["bound"]["value"] is None
    assert len((path / "jobs.csv").read_text().splitlines()) == 6
    assert read_journal(path / "events.jsonl")[-1]["kind"] == "aborted"


def test_a_job_bigger_than_the_cluster_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    needs = "job 9: tasks = 5 with mem_req_frac = 0.6 and cpu_need_frac = 1"
    with pytest.raises(UserError, match=rf"{needs} do not fit on 2 nodes under GreedyPM"):
        rehearse(tmp_path, [Job(9, 0, 5, 1.0, 0.6, 10)])
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    chosen = scenario()
    with pytest.raises(UserError, match="cannot create the run directory"):
        run_in_virtual_time(
            run_session(chosen, parse(BEST), five_jobs(), tmp_path / "file" / "run", dry_lab, Watcher())
        )


def test_a_rehearsal_needs_no_disk_for_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _path: SimpleNamespace(free=3999 << 20))
    with pytest.raises(UserError, match="3999 MiB free on its disk: expected at least 4000 MiB for images"):
        check_disk(tmp_path, scenario())
    result, _ = rehearse(tmp_path, five_jobs())
    assert result.summary["done"] == 5


def test_changed_policy_code_is_found_out(tmp_path: Path) -> None:
    result, _ = rehearse(tmp_path, five_jobs())
    journal = result.path / "events.jsonl"
    lines = journal.read_text().splitlines()
    for index, line in enumerate(lines):
        entry = json.loads(line)
        if entry["kind"] == "decision" and entry["decision"]["yield_frac"]:
            entry["decision"]["yield_frac"][0] += 2**-40
            del entry["crc"]
            lines[index] = seal(json.dumps(entry).encode()).decode()
            break
    journal.write_text("\n".join(lines) + "\n")
    _, different = replay_decisions(result.path)
    assert [difference.number for difference in different] == [1]


def test_a_policy_without_places_is_refused() -> None:
    with pytest.raises(UserError, match="EQUIPARTITION: it shares one machine without places"):
        parse("EQUIPARTITION")


def test_different_nodes_are_refused() -> None:
    chosen = scenario(nodes=[{"name": "a", "cpus": 1}, {"name": "b", "cpus": 2}])
    with pytest.raises(UserError, match="the same cpus and memory_mib"):
        check_jobs(five_jobs(), parse(BEST), chosen)


def test_a_rehearsal_takes_as_long_whatever_speed_of_a_core_the_scenario_gives(tmp_path: Path) -> None:
    """Null nodes have a fixed speed: work that is sized by another speed would take another time."""
    ends = []
    for programs in ({}, {"units_per_core_s": 1_234_567.0}):
        result, _journal = rehearse(tmp_path, five_jobs(), programs=programs)
        with (result.path / "jobs.csv").open() as file:
            ends.append([float(row["end_time_s"]) for row in csv.DictReader(file)])
    assert ends[1] == pytest.approx(ends[0], rel=1e-3)
