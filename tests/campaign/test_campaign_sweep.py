"""The sweep on disk, killed at any point of its work, and the tables of its results against hand-made figures."""

from __future__ import annotations

import contextlib
import csv
import statistics
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.campaign.campaign_files import SMALL, write

import testbed.scheduling.campaign.sweep as sweep_module
import testbed.scheduling.campaign.workers as workers_module
import testbed.scheduling.compiler
from testbed.errors import RunError, UserError
from testbed.scheduling.bound.max_stretch import bound
from testbed.scheduling.campaign.figures import lines_of
from testbed.scheduling.campaign.file import load_campaign
from testbed.scheduling.campaign.instances import TraceSets
from testbed.scheduling.campaign.model import TableSpec
from testbed.scheduling.campaign.plan import Plan
from testbed.scheduling.campaign.report import write_report
from testbed.scheduling.campaign.results import rows_of
from testbed.scheduling.campaign.run import Place, run_units
from testbed.scheduling.campaign.summary import summarise
from testbed.scheduling.campaign.sweep import Sweep
from testbed.scheduling.campaign.tables import as_latex, as_text
from testbed.scheduling.campaign.work import Fault, UnitResult, do_unit
from testbed.scheduling.simulation.measures import measure
from testbed.scheduling.simulation.named import named
from testbed.scheduling.simulation.simulate import simulate
from testbed.scheduling.workload.files import write_text
from testbed.scheduling.workload.load import scale_load
from testbed.scheduling.workload.synthetic import synthetic_trace

CODE = "this code"


class Kill(BaseException):
    """The process is killed at this point."""


class Fuse:
    """A disk that kills the process after a number of operations."""

    def __init__(self, steps):
        self.steps = steps

    def step(self):
        self.steps -= 1
        if self.steps < 0:
            raise Kill


class Count:
    def __init__(self):
        self.results = []

    def ended(self, result):
        self.results.append(result)


def plan_of(folder, text=SMALL):
    path = write(folder, text)
    return Plan(TraceSets(load_campaign(path), path))


def go(plan, folder, *, retry=False, code=CODE):
    """Run the command once, without its report; return the results of the units that ended."""
    count = Count()
    with Sweep(folder) as sweep:
        if retry:
            sweep.forget_failures(plan.keys())
        settled = sweep.results(code).settled()
        sweep.interrupted()
        run_units(plan.units(settled, code), code, sweep, Place(1), count)
    return count.results


def known(folder, code=CODE, **options):
    with Sweep(folder) as sweep:
        return sweep.results(code, **options)


@pytest.fixture(autouse=True)
def twins(monkeypatch):
    monkeypatch.setattr(testbed.scheduling.compiler, "can_compile", lambda: False)


@settings(max_examples=30)
@given(kills=st.lists(st.integers(0, 45), max_size=6), bad=st.sets(st.integers(0, 39), max_size=3))
def test_killed_at_any_step_on_the_disk_nothing_is_lost_and_nothing_done_again(kills, bad):
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        plan = plan_of(folder)
        keys = sorted(plan.keys())
        bad_keys = {keys[place] for place in bad}
        worked = Counter()
        fuse = Fuse(0)

        def work(unit, code):
            fuse.step()
            simulated = [one.key for one in unit.simulations]
            bounds = [key for key, _ in unit.bounds]
            worked.update([*simulated, *bounds])
            return UnitResult(
                unit.name, unit.label, code,
                {key: {"max_stretch": float(len(key))} for key in simulated if key not in bad_keys},
                {key: 1.5 for key in bounds if key not in bad_keys},
                [Fault(key, "it", "bad") for key in [*simulated, *bounds] if key in bad_keys],
            )  # fmt: skip

        def torn(path, text):
            fuse.step()
            draft = path.with_name(f".{path.name}.1.part")
            draft.write_text(text[: len(text) // 2])
            fuse.step()
            draft.unlink()
            write_text(path, text)
            fuse.step()

        def step_before(function):
            def stepping(*arguments, **options):
                fuse.step()
                return function(*arguments, **options)

            return stepping

        patch.setattr(workers_module, "do_unit", work)
        patch.setattr(sweep_module, "write_text", torn)
        patch.setattr(Path, "touch", step_before(Path.touch))
        on_disk = set()
        for steps in kills:
            fuse.steps = steps
            with contextlib.suppress(Kill):
                go(plan, folder / "out")
            fuse.steps = 10**9
            found = known(folder / "out")
            assert on_disk <= found.settled()  # kept results stay
            on_disk = found.settled()
        before = Counter(worked)
        fuse.steps = 10**9
        go(plan, folder / "out")
        assert all(worked[key] == before[key] for key in on_disk)  # and are not repeated
        found = known(folder / "out")
        assert set(found.measures) | set(found.bounds) == set(keys) - bad_keys
        assert set(found.faults) == bad_keys
        assert max(worked.values()) <= 1 + len(kills)
        assert not list((folder / "out" / "running").iterdir())
        assert not list((folder / "out").glob("*/.*"))
        assert go(plan, folder / "out") == []
        # on request, failed units are repeated, and no others
        before = Counter(worked)
        bad_again, bad_keys = bad_keys, set()
        go(plan, folder / "out", retry=True)
        assert {key for key in keys if worked[key] > before[key]} == bad_again
        assert not known(folder / "out").faults


def test_one_process_a_folder(tmp_path):
    with Sweep(tmp_path / "out"), pytest.raises(UserError, match=r"a campaign works here \(process \d+\)"):
        go(plan_of(tmp_path), tmp_path / "out")


def test_a_changed_file_asks_only_for_what_is_new_and_other_code_for_all(tmp_path):
    out = tmp_path / "out"
    first = plan_of(tmp_path, SMALL.replace(', "EQUIPARTITION"', "").replace('"theorem1", ', "").replace(
        "degradation_theorem1", "degradation_fluid"))  # fmt: skip
    code = testbed.scheduling.campaign.work.code_version()
    assert sum(len(result.measures) for result in go(first, out, code=code)) == 8 * 2
    second = go(plan_of(tmp_path), out, code=code)
    assert [(len(result.measures), len(result.bounds)) for result in second] == [(1, 1)] * 8
    with pytest.raises(RunError, match="this worker has version"):
        go(plan_of(tmp_path), out, code="other")
    assert known(out, "other").other_code == 8 * 3
    assert len(known(out, "other", any_code=True).measures) == 8 * 3


def test_a_result_that_is_damaged_is_told(tmp_path):
    go(plan_of(tmp_path), tmp_path / "out", code=testbed.scheduling.campaign.work.code_version())
    path = next((tmp_path / "out" / "done").iterdir())
    path.write_text(path.read_text()[:-20])
    with pytest.raises(UserError, match=f"{path.name}: not a result of a campaign"):
        known(tmp_path / "out")


def test_results_tables_and_figures_are_those_of_simulations_made_here(tmp_path):
    code = testbed.scheduling.campaign.work.code_version()
    plan = plan_of(tmp_path)
    campaign = plan.sets.campaign
    go(plan, tmp_path / "out", code=code)
    results = known(tmp_path / "out", code)
    rows = rows_of(plan, results)
    assert len(rows) == 8 * 3
    by_hand = {}
    for row in rows:
        jobs = synthetic_trace(16, 30, row["seed"])
        jobs = jobs if row["load"] is None else scale_load(jobs, 16, row["load"])
        run = named(row["policy"]).simulate(jobs, 16)
        figures = measure(run, bound(jobs, 16), 8.0)
        assert row["max_stretch"] == figures.max_stretch
        assert row["degradation_theorem1"] == figures.degradation
        assert row["degradation_fluid"] == figures.max_stretch / bound(jobs, 16, kind="fluid")
        assert row["underutilization"] == figures.underutilization
        assert row["makespan_s"] == figures.makespan_s
        by_hand.setdefault((row["trace"]), {})[row["policy"]] = figures
    for row in rows:
        best = min(figures.max_stretch for figures in by_hand[row["trace"]].values())
        assert row["degradation_factor"] == row["max_stretch"] / best

    texts = write_report(tmp_path / "out", plan, results)
    with (tmp_path / "out" / "results.csv").open() as file:
        in_csv = list(csv.DictReader(file))
    in_parquet = pq.read_table(tmp_path / "out" / "results.parquet").to_pylist()
    assert in_parquet == rows
    assert [{name: "" if value is None else str(value) for name, value in row.items()} for row in rows] == in_csv

    scaled = [f["EASY"].degradation for trace, f in by_hand.items() if trace.startswith("scaled")]
    summary = summarise(campaign, campaign.tables[0], rows)
    assert summary.columns == [("Scaled & tiny", "degradation_theorem1"), ("unscaled", "degradation_theorem1")]
    assert [name for name, _ in summary.rows] == ["FCFS", "EASY", "EQUIPARTITION"]
    cell = summary.rows[1][1][0]
    assert cell.count == 6
    assert cell.mean == pytest.approx(statistics.mean(scaled), rel=1e-12)
    assert cell.std == pytest.approx(statistics.stdev(scaled), rel=1e-12)
    assert cell.maximum == max(scaled)
    line = next(line for line in texts[0].splitlines() if line.startswith("EASY"))
    assert line.split()[1:4] == [f"{v:,.2f}" for v in (cell.mean, cell.std, cell.maximum)]
    assert "over 2 to 6 traces" in texts[0]

    lines = {line.label: line for line in lines_of(campaign, campaign.figures[0], rows)}
    assert set(lines) == {f"{policy}, {name}" for policy in campaign.policies for name in ("scaled",)}
    assert lines["FCFS, scaled"].x == [0.5, 0.9]
    at = [f["FCFS"].max_stretch for trace, f in by_hand.items() if trace.endswith("load-0.9")]
    assert lines["FCFS, scaled"].y[1] == pytest.approx(statistics.mean(at), rel=1e-12)

    drawn = sorted(path for room in ("tables", "figures") for path in (tmp_path / "out" / room).iterdir())
    assert {path.suffix for path in drawn} == {".txt", ".csv", ".tex", ".svg", ".pdf"}
    before = {path: path.read_bytes() for path in (*drawn, *(tmp_path / "out").glob("results.*"))}
    write_report(tmp_path / "out", plan, results)
    assert {path: path.read_bytes() for path in before} == before


def row_of(traces, policy, value, **more):
    return {"traces": traces, "policy": policy, "load": None, "period_s": None, "overheads": "constant:300",
            "preemptions_per_job": value, **more}  # fmt: skip


def test_a_table_of_costs_by_hand(tmp_path):
    campaign = plan_of(tmp_path).sets.campaign
    spec = TableSpec(
        name="table-3", title="Costs at 50 % & more", measures="preemptions_per_job", cell="mean-max",
        where="load >= 0.7",
    )  # fmt: skip
    rows = [row_of("scaled", "FCFS", value, load=load) for load, value in ((0.6, 99.0), (0.7, 1.0), (0.8, 2.5))]
    rows += [row_of("scaled", "EASY", 1000.0, load=0.9, period_s=period_s) for period_s in (600.0, 1200.0)]
    rows += [row_of("unscaled", "FCFS", 7.0)]
    summary = summarise(campaign, spec, rows)
    text = as_text(spec, summary).splitlines()
    assert [line.split("  ")[0] for line in text[4:7]] == ["FCFS", "EASY, T = 600 s", "EASY, T = 1200 s"]
    assert [line.split("  ")[-1].strip() for line in text[4:7]] == ["1.75 (2.50)"] + ["1,000.00 (1,000.00)"] * 2
    latex = as_latex(spec, summary)
    assert r"\caption{Costs at 50 \% \& more}" in latex
    assert r"FCFS & 1.75 (2.50) \\" in latex
    assert latex.count(r"\begin{tabular}{lr}") == 1


def test_one_policy_that_fails_leaves_the_others(tmp_path, monkeypatch):
    def no_easy(jobs, nodes, policy, *arguments, **options):
        if policy.name == "EASY" and len(jobs) > 1:
            raise RunError("jobs are left to wait for ever")
        return simulate(jobs, nodes, policy, *arguments, **options)

    monkeypatch.setattr("testbed.scheduling.simulation.named.simulate", no_easy)
    code = testbed.scheduling.campaign.work.code_version()
    plan = plan_of(tmp_path)
    result = do_unit(next(plan.units(set(), code)), code)
    assert [(fault.what, fault.error) for fault in result.faults] == [("EASY", "jobs are left to wait for ever")]
    assert (len(result.measures), len(result.bounds)) == (2, 2)
    with Sweep(tmp_path / "out") as sweep:
        sweep.end(result)
        rows = rows_of(plan, sweep.results(code))
    assert [row["policy"] for row in rows] == ["FCFS", "EQUIPARTITION"]
    assert [row["degradation_factor"] for row in rows] == [None, None]  # the failed policy may be the best one


def test_a_trace_that_cannot_be_made_fails_as_a_whole(tmp_path):
    (tmp_path / "at-once.csv").write_text(
        "job_id,submit_time_s,tasks,cpu_need_frac,mem_req_frac,run_time_s\n1,0,1,1.0,0.4,300\n2,0,1,1.0,0.4,30\n"
    )
    text = 'name="x"\npolicies=["FCFS"]\nloads=[0.5]\n[[traces]]\nname="t"\nkind="table"\nnodes=1\nfiles="*.csv"\n'
    code = testbed.scheduling.campaign.work.code_version()
    results = go(plan_of(tmp_path, text), tmp_path / "out", code=code)
    assert [(fault.what, "one instant" in fault.error) for fault in results[0].faults] == [
        ("FCFS", True),
        ("bound theorem1", True),
    ]
