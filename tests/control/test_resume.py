"""A run is resumed after the loss of its controller at any entry of its journal."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.control.killed_controller import LEASE_S, KilledController
from support.control.rehearsal import movers, scenario

from node_agent.drivers.null import NullDriver
from node_agent.drivers.protocol import DriverError, SaveReport
from testbed.bus.messages import GuestSpec
from testbed.control.lost_run import load_lost_run
from testbed.errors import UserError
from testbed.measure.rundir import read_journal
from testbed.run import events
from testbed.run.events import Event
from testbed.run.reader import read_history
from testbed.scenario.schema import Scenario
from testbed.scheduling.workload.jobs import Job

EVERY = int(os.environ.get("DFRS_RESUME_EVERY", "307"))  # the controller is lost at every EVERYth entry
SPREAD, RECOVERING = 7, 23  # the second loss is at one of the first entries after the resume, each time another one
KEEP = {"on_controller_loss": "keep", "deadlines": {"lease_ttl_s": LEASE_S}}


def at(*numbers: int) -> Callable[[Event], bool]:
    """Hold for one event per number, in turn; events count from the begin of the replay, then from each resume (0)."""
    left = list(numbers)
    count = -1

    def holds(event: Event) -> bool:
        nonlocal count
        if isinstance(event, events.Replay | events.Resumed):
            count = 0
        elif count >= 0:
            count += 1
        if left and count == left[0]:
            del left[0]
            count = -1
            return True
        return False

    return holds


@pytest.mark.parametrize("verb", ["start", "cap", "save", "transfer", "restore", "migrate"])
def test_an_operation_under_way_is_carried_on(tmp_path: Path, verb: str) -> None:
    live = verb == "migrate"
    chosen = scenario(**KEEP, **({"migration": {"mechanism": "live"}} if live else {}))
    run = KilledController(
        tmp_path, chosen, movers(), lambda event: isinstance(event, events.Intent) and event.verb == verb
        and not run.killed_at, extras="whole,live" if live else "",
    )  # fmt: skip
    result = run.run()
    assert len(run.killed_at) == 1
    assert result.summary["done"] == len(movers()), result.summary["failed"]
    history = read_history(run.path / "events.jsonl")
    assert history.resumes == 1
    away_s = 2 * LEASE_S
    assert result.summary["without_controller"]["blind_s"] >= away_s
    costs = [each for job in history.jobs.values() for each in job.reschedulings]
    assert costs, "jobs were preempted or moved"
    assert max(cost.so_far_s for cost in costs) < away_s, "the time without a controller is no penalty"
    assert history.last_s >= away_s + history.last_trace_s / chosen.time_scale, "nor does trace time advance in it"


def test_guests_keep_their_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual machine is restored with the address that its image has."""
    addresses: dict[str, set[str]] = {}

    def recorded(operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(driver: NullDriver, spec: GuestSpec, *arguments: object) -> object:
            addresses.setdefault(spec.guest, set()).add(spec.address)
            return operation(driver, spec, *arguments)

        return call

    for name in ("start", "restore", "adopt"):
        monkeypatch.setattr(NullDriver, name, recorded(getattr(NullDriver, name)))
    run = KilledController(
        tmp_path, scenario(**KEEP), movers(), lambda event: isinstance(event, events.Intent) and event.verb == "save"
        and not run.killed_at,
    )  # fmt: skip
    run.run()
    assert run.killed_at
    assert {guest: found for guest, found in addresses.items() if len(found) > 1} == {}


def test_an_image_that_was_written_between_two_losses_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes have no image of a save at the first loss of the controller, and one of two at the second loss."""
    written: set[str] = set()
    save = NullDriver.save

    async def one_after_the_other(driver: NullDriver, guest: str, at: int | None, image: Path) -> SaveReport:
        if guest.endswith("-t1"):
            await asyncio.sleep(2.5 * LEASE_S)  # virtual time: the save is over when the third controller asks
        report = await save(driver, guest, at, image)
        written.add(guest)
        return report

    monkeypatch.setattr(NullDriver, "save", one_after_the_other)

    def dies(event: Event) -> bool:
        if not run.killed_at:
            return isinstance(event, events.Intent) and event.verb == "save" and len(event.nodes) == 2
        first, second = (guest for guest in run.killed_at[0].guests)
        return len(run.killed_at) == 1 and first in written and second not in written

    jobs = [Job(1, 0, 2, 1.0, 0.6, 20_000), *(Job(number, 60 * number, 1, 1.0, 0.6, 60) for number in range(2, 9))]
    run = KilledController(tmp_path, scenario(policy="GreedyP */OPT=MIN", **KEEP), jobs, dies)
    result = run.run()
    assert len(run.killed_at) == 2
    assert result.summary["done"] == len(jobs), result.summary["failed"]


def test_a_guest_may_end_while_it_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of one task of a job does not fail the adoption of the others."""
    ended: list[str] = []

    set_cap = NullDriver.set_cap

    async def ending(driver: NullDriver, guest: str, cap_cores: float) -> float:
        if run.killed_at and not ended and guest.endswith("-t0"):
            ended.append(guest)
            driver._done(driver._guests[guest])
            raise DriverError(f"guest {guest} has ended")
        return await set_cap(driver, guest, cap_cores)

    monkeypatch.setattr(NullDriver, "set_cap", ending)
    run = KilledController(
        tmp_path, scenario(**KEEP), [Job(1, 0, 2, 0.5, 0.2, 9000)], lambda event: isinstance(event, events.Outcome)
        and not run.killed_at,
    )  # fmt: skip
    result = run.run()
    assert ended
    assert result.summary["done"] == 1, result.summary["failed"]


def rows(table: Path) -> list[list[float | str]]:
    with table.open(newline="") as file:
        return [[float(cell) if cell.replace(".", "").isdigit() else cell for cell in row] for row in csv.reader(file)]


def test_results_that_a_lost_controller_did_not_write_are_those_of_its_run(tmp_path: Path) -> None:
    found = []
    ways = {"lost": lambda event: isinstance(event, events.Teardown), "undisturbed": lambda _event: False}
    for name, dies in ways.items():
        run = KilledController(tmp_path / name, scenario(**KEEP), movers(), dies)
        summary = run.run().summary
        assert json.loads((run.path / "summary.json").read_text()) == summary
        found.append((run, summary, rows(run.path / "jobs.csv")))
    (lost, summary, jobs), (_, undisturbed, other_jobs) = found
    assert len(lost.killed_at) == 1
    assert summary["complete"] is True
    assert summary["results"] == undisturbed["results"]
    assert jobs == other_jobs
    timings = {"decide_mean", "decide_max"}  # they depend on this machine
    assert {name: each for name, each in summary["metrics"].items() if name not in timings} == {
        name: each for name, each in undisturbed["metrics"].items() if name not in timings
    }
    with pytest.raises(UserError, match="the run is complete: there is nothing to resume"):
        load_lost_run(lost.path)


WAYS: dict[str, dict[str, object]] = {
    "save-restore": {},
    "live": {"migration": {"mechanism": "live"}},
    "one save at once": {"migration": {"saves_at_once": 1}},
    "static": {"policy": "static/SGB"},
    "known costs": {"policy": "/per/OPT=MIN/KNOWS=cost", "overheads": "constant:300"},
}


@pytest.mark.parametrize(("way", "losses"), [("save-restore", 1), ("live", 1), *((way, 2) for way in WAYS)])
def test_wherever_the_controller_is_lost_every_job_ends_well(tmp_path: Path, way: str, losses: int) -> None:
    chosen = scenario(**KEEP, **WAYS[way])
    extras = "whole,live" if way == "live" else ""
    unhappy: dict[tuple[int, ...], str] = {}
    runs = lost = 0
    for number in range(0, entries(tmp_path / "undisturbed", chosen, extras), EVERY):
        numbers = (number, *((number * SPREAD) % RECOVERING for _ in range(1, losses)))
        run = KilledController(tmp_path / f"at-{number}", chosen, movers(), at(*numbers), extras=extras)
        runs += 1
        try:
            result = run.run()
        except TimeoutError:
            unhappy[numbers] = f"hangs after {run.killed_at}"
            continue
        lost += len(run.killed_at)  # there is no second loss if the run ends before
        if not run.killed_at or result.summary["done"] < len(movers()):
            unhappy[numbers] = f"{len(run.killed_at)} losses, {result.summary['failed']}"
        shutil.rmtree(tmp_path / f"at-{number}")
    assert lost > 0
    assert unhappy == {}
    found = {"way": way, "losses": losses, "every": EVERY, "runs": runs, "lost": lost}
    if file := os.environ.get("DFRS_RESUME_RESULT"):
        with Path(file).open("a") as lines:
            lines.write(f"{json.dumps(found)}\n")


def entries(folder: Path, chosen: Scenario, extras: str) -> int:
    """Return the number of entries of a run without losses, from the begin of its replay to its end."""
    run = KilledController(folder, chosen, movers(), lambda _event: False, extras=extras)
    run.run()
    kinds = [entry["kind"] for entry in read_journal(run.path / "events.jsonl")]
    return kinds.index("teardown") + 1 - kinds.index("replay")
