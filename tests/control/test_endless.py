"""Dry runs and simulations end: endless ones are refused with the key at fault, and a watchdog catches the rest."""

from __future__ import annotations

import asyncio

import pytest
from support.control.rehearsal import scenario

from testbed.control.admission import check_events
from testbed.errors import UserError
from testbed.lab import virtual_time
from testbed.lab.virtual_time import run_in_virtual_time
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.simulation import loop
from testbed.scheduling.simulation.simulate import simulate
from testbed.scheduling.workload.jobs import Job

PERIODIC = "GreedyPM */per/OPT=MIN/MINVT=600"


def job(run_time_s: float) -> Job:
    return Job(1, 0.0, 1, 1.0, 0.4, run_time_s)


def test_a_dry_run_of_too_many_events_is_refused_with_the_key() -> None:
    check_events([job(1e6)], parse(PERIODIC), scenario(time_scale=60))
    with pytest.raises(UserError, match=r"^time_scale = 0\.001: a dry run of 1e\+09 wall seconds on 2 nodes"):
        check_events([job(1e6)], parse(PERIODIC), scenario(time_scale=0.001))
    with pytest.raises(UserError, match=r"^period_s = 0\.1: a job of 1e\+09 s has 1e\+10 periods: expected at most"):
        check_events([job(1e9)], parse(PERIODIC, 0.1), scenario(time_scale=1e6))
    check_events([job(1e9)], parse("EASY"), scenario(time_scale=1e6))


def test_a_simulation_of_too_many_periods_is_refused() -> None:
    with pytest.raises(UserError, match=r"period of 0\.1 s: job 1 of 1e\+09 s has 1e\+10 of them"):
        simulate([job(1e9)], 2, parse(PERIODIC, 0.1))
    with pytest.raises(UserError, match=r"1 jobs on 1000000000000 nodes: .* at most 1000000 nodes"):
        simulate([job(10.0)], 10**12, parse("EASY"))


def test_a_simulation_ends_although_its_events_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "MOST_EVENTS", 10)
    with pytest.raises(Exception, match="10 decisions, and no end: expected a longer period or fewer jobs: jobs 1"):
        simulate([job(1e8)], 2, parse(PERIODIC))


def test_virtual_time_without_end_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_time, "MOST_EVENTS", 100)
    cleaned: list[bool] = []

    async def for_ever() -> None:
        try:
            while not cleaned:  # noqa: ASYNC110  it must not end
                await asyncio.sleep(5)
        finally:
            await asyncio.sleep(1)
            cleaned.append(True)

    with pytest.raises(UserError, match=r"^dry run: 100 events by virtual second 49\d.*: expected a larger time_scale"):
        run_in_virtual_time(for_ever())
    assert cleaned == [True]


def test_virtual_time_that_stands_still_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_time, "MOST_IDLE_TURNS", 100)

    async def spin() -> None:
        await asyncio.sleep(7)
        while asyncio.get_running_loop().time() > 0:  # noqa: ASYNC110  it must not end
            await asyncio.sleep(0)

    with pytest.raises(UserError, match="100 turns at one instant by virtual second 7"):
        run_in_virtual_time(spin())
