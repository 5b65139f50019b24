"""Campaigns of live runs: their order, repeated runs, the continuation of an interrupted one, and a real one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.compare.compared_runs import dry_run
from support.compare.compared_runs import repeat as copy_of
from support.control.live_run import HEADER, SCENARIO
from support.deadlines import PATIENT_TOML
from support.live import HANG_S

from testbed.cli.bodies.live_campaign import live_campaign
from testbed.errors import UserError
from testbed.study.compare.equivalence import EQUAL, NOT_SHOWN
from testbed.study.live_campaign import work as work_module
from testbed.study.live_campaign.file import LiveCampaign, is_live, load_live_campaign
from testbed.study.live_campaign.plan import Case, PlannedRun, cases_of, planned
from testbed.study.live_campaign.record import EndedRun, Record
from testbed.study.live_campaign.work import work

CASES = [Case(Path("a.toml"), policy, seed) for policy in ("FCFS", "EASY") for seed in (1, 2)]


def campaign(**changes: object) -> LiveCampaign:
    tables = {"kind": "live", "name": "c", "policies": ["FCFS", "EASY"], "repeats": 3, "scenario": [{"file": "a.toml"}]}
    return LiveCampaign.model_validate({**tables, **changes})


@given(st.integers(0, 10**6))
def test_each_repeat_does_every_case_once_in_an_order_of_its_own(seed: int) -> None:
    blocks = list(planned(campaign(order_seed=seed), CASES))
    assert blocks == list(planned(campaign(order_seed=seed), CASES)), "the same campaign has the same order"
    for repeat, block in enumerate(blocks, 1):
        assert {each.repeat for each in block} == {repeat}
        assert sorted(str(each.case) for each in block) == sorted(map(str, CASES))


def test_orders_differ_between_repeats() -> None:
    blocks = [[str(each.case) for each in block] for block in planned(campaign(repeats=10), CASES)]
    assert len({tuple(block) for block in blocks}) > 1


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[str]], list[str]]:
    """Return a function that gives the reason to leave out each next run; the list of done runs grows."""

    def told(reasons: Sequence[str]) -> list[str]:
        left, done = list(reasons), []

        def run_one(each: PlannedRun, _record: Record) -> EndedRun:
            done.append(each.key)
            reason = left.pop(0) if left else ""
            if reason == "interrupt":
                raise KeyboardInterrupt
            return EndedRun(each.key, f"run-{len(done)}", 0, (reason,) if reason else ())

        monkeypatch.setattr(work_module, "run_one", run_one)
        return done

    return told


def test_disturbed_runs_are_done_again_as_long_as_the_budget_lasts(
    tmp_path: Path, outcomes: Callable[[Sequence[str]], list[str]]
) -> None:
    done = outcomes(["load", "", "load", "load"])
    record, said = Record(tmp_path / "out"), []
    missing = work(campaign(redo=2), CASES, record, said.append)
    assert len(missing) == 1, "the third attempt is over the limit"
    assert len(done) == 3 * len(CASES) + 2
    assert Counter(each.key for each in record.ended if each.counts) == Counter(
        {each.key for block in planned(campaign(), CASES) for each in block} - {missing[0].key}
    )
    assert said[:2] == [f"run 1 of 12: {done[0]}", "left out: load"]


def test_an_interrupted_campaign_goes_on_with_what_is_left(
    tmp_path: Path, outcomes: Callable[[Sequence[str]], list[str]]
) -> None:
    first = outcomes(["", "", "load", "interrupt"])
    with pytest.raises(KeyboardInterrupt):
        work(campaign(), CASES, Record(tmp_path), lambda _text: None)
    with (tmp_path / "done.jsonl").open("a") as file:
        file.write('{"key": "half a li')  # killed while it wrote
    second = outcomes([])
    record = Record(tmp_path)
    assert work(campaign(), CASES, record, lambda _text: None) == []
    assert not set(first[:2]) & set(second)
    assert set(first[2:4]) <= set(second)
    assert sum(each.counts for each in record.ended) == 12
    assert len(record.paths()) == 12


def test_files_are_read_with_one_line_for_a_mistake(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('kind = "live"\nname = "c"\npolicies = []\n[[scenario]]\nfile = "quickstart"\n')
    assert is_live(path)
    with pytest.raises(UserError, match=r"c\.toml: policies"):
        load_live_campaign(path)
    path.write_text('kind = "live"\nname = "c"\npolicies = ["FCSF"]\n[[scenario]]\nfile = "quickstart"\n')
    with pytest.raises(UserError, match=r"policy 'FCSF': not a name of the scheme; nearest: FCFS"):
        live_campaign(path, tmp_path / "out", report_only=False)
    path.write_text('kind = "live"\nname = "c"\npolicies = ["FCFS"]\n[[scenario]]\nfile = "quickstrat"\n')
    with pytest.raises(UserError, match=r"quickstrat: no such scenario file or name.*nearest: quickstart"):
        cases_of(load_live_campaign(path), path)
    (tmp_path / "done.jsonl").write_text("nonsense\n")
    with pytest.raises(UserError, match=r"done\.jsonl: line 1: expected a run that has ended"):
        Record(tmp_path)


def test_a_case_of_which_no_run_counts_is_named_and_keeps_the_verdict_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.toml").write_text(SCENARIO)
    (tmp_path / "c.toml").write_text(
        'kind = "live"\nname = "c"\npolicies = ["EASY", "FCFS"]\nrepeats = 5\n[[scenario]]\nfile = "a.toml"\n'
        '[compare]\noverheads = "constant:0"\n'
    )
    record = Record(tmp_path / "out")
    easy, fcfs = cases_of(load_live_campaign(tmp_path / "c.toml"), tmp_path / "c.toml")
    runs = [dry_run(record.runs / "EASY", "EASY")]
    runs += [copy_of(runs[0], f"again-{number}") for number in range(2, 6)]
    for number, run in enumerate(runs, 1):
        shutil.move(run, record.runs / f"run-{number}")
        record.add(EndedRun(PlannedRun(easy, number).key, f"run-{number}", 0))
        record.add(EndedRun(PlannedRun(fcfs, number).key, "", 1, ("no run directory",)))
    code = live_campaign(tmp_path / "c.toml", tmp_path / "out", report_only=True)
    judged = json.loads((tmp_path / "out/compare.json").read_text())
    assert [group["verdict"] for group in judged["groups"]] == [EQUAL]
    assert (judged["verdict"], code) == (NOT_SHOWN, 3), "nothing is known of FCFS"
    assert judged["cases_without_a_run"] == [str(fcfs)]
    assert f"no run of {fcfs} counts" in capsys.readouterr().err


@pytest.mark.slow
def test_a_real_campaign_ends_in_a_comparison_and_is_not_done_twice(tmp_path: Path) -> None:
    (tmp_path / "live.toml").write_text(SCENARIO + PATIENT_TOML)
    (tmp_path / "jobs.csv").write_text(HEADER + "1,0,1,1.0,0.2,60\n2,10,2,0.5,0.2,60\n")
    (tmp_path / "c.toml").write_text(
        'kind = "live"\nname = "c"\npolicies = ["FCFS"]\nrepeats = 2\nredo = 1\n[[scenario]]\nfile = "live.toml"\n'
    )
    command = [sys.executable, "-m", "testbed", "campaign", "c.toml", "--out", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=HANG_S)
    assert done.returncode in (1, 3), done.stdout + done.stderr  # two runs show nothing; a busy machine leaves none
    assert "the power is not known" in done.stderr
    record = Record(tmp_path / "out")
    assert len(record.ended) >= 2
    judged = json.loads((tmp_path / "out/compare.json").read_text())
    assert sum(len(group["runs"]) for group in judged["groups"]) == len(record.paths())
    again = subprocess.run(
        [*command, "--report-only"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=HANG_S
    )
    assert again.returncode == done.returncode
    assert len(Record(tmp_path / "out").ended) == len(record.ended)
