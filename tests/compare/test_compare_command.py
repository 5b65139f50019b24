"""`testbed compare` end to end: dry runs compared with their simulation, repeats, other policies, mistakes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.compare.compared_runs import BEST, add_offline, dry_run, quickstart_jobs, repeat

from testbed.cli.compare import compare
from testbed.errors import UserError
from testbed.scheduling.simulation.overheads import constant
from testbed.study.compare.equivalence import DIFFERENT, EQUAL, NOT_SHOWN
from testbed.study.compare.live import read_live
from testbed.study.compare.study import study

POLICIES = [BEST, "EASY", "FCFS", "/stretch-per/OPT=MAX"]


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Dry runs of the quickstart's jobs, one under each policy."""
    jobs = [replace(job, submit_time_s=job.submit_time_s + 5) for job in quickstart_jobs()]  # no pass at the very begin
    folder = tmp_path_factory.mktemp("compare")
    return {policy: dry_run(folder / f"p{n}", policy, jobs, time_scale=50) for n, policy in enumerate(POLICIES)}


def command(*words: object) -> Result:
    result = CliRunner().invoke(compare, [str(word) for word in words], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result


def found(*words: object) -> dict:
    return json.loads(command(*words, "--json").stdout)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_rehearsal_and_its_simulation_agree_when_its_overheads_are_given(rehearsed, policy: str) -> None:
    """Null drivers act at once, so with overheads of 0 run and simulation agree, up to rounded work and commands."""
    data = found(rehearsed[policy], "--overheads", "constant:0")
    (group,) = data["groups"]
    assert group["statistics"]["turnaround"]["mean_error_frac"] < 1e-4
    assert group["statistics"]["max_stretch"]["mean_error_frac"] < 1e-3
    decisions = group["by_run"][0]["decisions"]
    assert decisions["same_placement_frac"] == 1.0
    assert decisions["first_divergence"] is None
    assert decisions["triggers_in_both"] >= 20
    assert decisions["running_jaccard_over_time"] > 0.9999
    assert max(each["yield_gap"] for each in decisions["decisions"]) < 1e-3
    step = group["by_run"][0]["one_step"]
    assert (step["same_placement_frac"], step["decisions"] >= 10) == (1.0, True)
    assert step["progress_error_median_s"] < 1.0
    for job in group["by_run"][0]["jobs"]:
        one, other = job["live"], job["simulated"]
        assert (one["preemptions"], one["migrations"]) == (other["preemptions"], other["migrations"])
        for part, value in one["parts"].items():
            assert value == pytest.approx(other["parts"][part], abs=0.2), (job["job"], part)
    assert data["verdict"] == NOT_SHOWN, "one run is not conclusive"
    if policy == BEST:
        assert sum(job["live"]["preemptions"] + job["live"]["migrations"] for job in group["by_run"][0]["jobs"]) > 3


def test_a_model_of_other_nodes_is_told(rehearsed, tmp_path: Path) -> None:
    run = rehearsed[BEST]
    facts = next(iter(json.loads((run / "manifest.json").read_text())["nodes"].values()))
    model = tmp_path / "calibration.toml"
    table = "[overheads]\nmemory_gb = [1.0]\nresume_s = [[0.0]]\nmigration_s = [[0.0]]\n"
    for cpus, told in ((facts["cpus"], []), (facts["cpus"] + 1, ["cpus"])):
        model.write_text(f"{table}[provenance.nodes.a]\ncpus = {cpus}\ndriver = {json.dumps(facts['driver'])}\n")
        warnings = found(run, "--overheads", str(model))["warnings"]
        assert [re.search(r"measured on nodes with (\w+) ", each)[1] for each in warnings] == told
    assert command(run, "--overheads", str(model)).stderr.startswith(f"testbed: warning: {model} was measured on")
    assert found(run, "--overheads", "constant:0")["warnings"] == []


def test_a_wrong_penalty_makes_a_difference_and_is_found_as_its_source(rehearsed) -> None:
    run = rehearsed[BEST]
    runs = [run, *(repeat(run, f"again-{n}", longer=lambda job, n=n: 1 + 0.001 * ((job + n) % 3)) for n in range(1, 5))]
    well = study([read_live(path) for path in runs], constant(0.0))
    assert well.verdict == EQUAL
    assert command(*runs, "--overheads", "constant:0").return_value == 0
    assert well.groups[0].judged[0].band.high == pytest.approx(0.0015, rel=0.2)
    assert well.groups[0].spread.largest == pytest.approx(0.002, rel=0.05)
    wrong = command(*runs, "--overheads", "constant:300")
    assert wrong.return_value == 1
    data = found(*runs, "--overheads", "constant:300")
    assert data["verdict"] == DIFFERENT
    found_run = data["groups"][0]["by_run"][0]
    assert found_run["decisions"]["first_divergence"] is not None
    assert found_run["one_step"]["same_placement_frac"] > found_run["decisions"]["same_placement_frac"]
    by_job = {each["job"]: each["difference"] for each in data["groups"][0]["sources"]}
    penalties = [abs(each["penalty_s"]) for each in by_job.values() if abs(each["penalty_s"]) > 1]
    assert min(penalties) == pytest.approx(300, rel=0.01), "one resume delays a job by 300 s"
    for each in by_job.values():
        parts = {name: value for name, value in each.items() if name != "turnaround_s"}
        assert sum(parts.values()) == pytest.approx(each["turnaround_s"], abs=1e-6)
    order = [abs(each["difference"]["turnaround_s"]) for each in data["groups"][0]["sources"]]
    assert order == sorted(order, reverse=True)


def test_what_noise_hides_is_not_shown(rehearsed) -> None:
    run = rehearsed["EASY"]
    runs = [repeat(run, f"noisy-{n}", longer=lambda _job, n=n: 1 + 0.1 * n) for n in range(3)]
    words = (*runs, "--overheads", "constant:0", "--keep-disturbed")  # samples are missing at the later end
    data = found(*words)
    statistic = data["groups"][0]["statistics"]["turnaround"]
    # live 1, 1.1, 1.2 times: each against the median of the others, and the simulation, 1, against each
    assert statistic["band"]["values_frac"] == pytest.approx([0.15, 0.0, 0.125], abs=1e-3)
    assert statistic["errors_frac"] == pytest.approx([0.0, 1 / 11, 1 / 6], abs=1e-3)
    assert statistic["verdict"] == NOT_SHOWN
    assert statistic["runs_needed"] > 5
    result = command(*words)
    assert result.return_value == 3
    assert "3 runs: a verdict needs at least 5" in result.output
    assert "runs would be needed" in result.output
    with pytest.raises(UserError, match=r"^--goals 5: expected two fractions of 1"):
        command(*words, "--goals", "5")


def test_policies_are_ordered_where_repeats_tell_them_apart(rehearsed) -> None:
    runs = []
    for policy in (BEST, "FCFS", "EASY"):
        run = rehearsed[policy]
        runs += [run, repeat(run, f"{policy[:4]}-2", longer=lambda job: 1 + 0.01 * (job % 2))]
    data = found(*runs, "--overheads", "constant:0")
    (orders,) = data["orders"].values()
    assert [each["metric"] for each in orders] == ["max stretch", "mean stretch"]
    for order in orders:
        assert order["same_order"] is True
        assert list(order["live"]) == list(order["simulated"])
        assert order["kendall_tau"] == 1.0
        assert any(pair["told_apart"] for pair in order["pairs"])
    assert len(data["groups"]) == 3
    text = command(*runs, "--overheads", "constant:0").output
    assert "the same order for the" in text


def test_disturbed_runs_are_left_out_with_the_reason_and_copies_count_once(rehearsed, tmp_path: Path) -> None:
    run = rehearsed[BEST]
    lost = repeat(run, "lost-a-node", journal=add_offline)
    result = command(run, run, lost, "--overheads", "constant:0")
    assert result.return_value == 3
    assert "lost-a-node: quarantined: times that a node went offline: 1, limit 0" in result.output
    assert "a copy of an earlier run, counts once" in result.output
    assert "1 run: a verdict needs at least 5" in result.output
    kept = found(run, lost, "--overheads", "constant:0", "--keep-disturbed")
    assert kept["groups"][0]["runs"] == [run.name, "lost-a-node"]
    assert kept["left_out"] == []
    nothing = command(lost)
    assert nothing.return_value == 1
    assert "Nothing to compare" in nothing.output


@pytest.mark.slow
def test_the_page_is_whole_and_needs_nothing_else(rehearsed, tmp_path: Path) -> None:
    run = rehearsed[BEST]
    other = repeat(run, "for-the-page", longer=lambda _job: 1.02)
    page = tmp_path / "compare.html"
    result = command(run, other, rehearsed["FCFS"], "--overheads", "constant:0", "--report", page)
    assert result.return_value == 3
    text = page.read_text()
    assert "It is not shown whether the simulation is equal" in text
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids)), "no id occurs twice"
    for name in (
        "band-1",
        "scatter-1",
        "turnarounds-1",
        "sources-1",
        "gantt-of-1",
        "difference-of-1",
        "order",
    ):
        assert f'id="{name}"' in text
    assert not re.search(r'(src|href)="(https?:)?//', text)
    assert "for-the-page" in text


def test_mistakes_are_told_in_a_line(rehearsed, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such run directory"):
        command(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"no overheads 'constnt'.*nearest: constant"):
        command(rehearsed["EASY"], "--overheads", "constnt:3")
    broken = repeat(rehearsed["EASY"], "broken", manifest=lambda about: about.pop("clocks"))
    with pytest.raises(UserError, match=r"manifest\.json: expected the manifest of a run: KeyError\('clocks'\)"):
        command(broken)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"manifest\.json: cannot read"):
        command(tmp_path / "empty")
    clash = repeat(rehearsed["FCFS"], "no-journal")
    (clash / "events.jsonl").unlink()
    with pytest.raises(UserError, match=r"events\.jsonl: cannot read"):
        command(clash)


def test_periods_make_policies_of_their_own(rehearsed) -> None:
    run = rehearsed[BEST]
    other = repeat(run, "other-period", manifest=lambda about: about.update(period_s=601.0))
    data = found(run, other, "--overheads", "constant:0", "--keep-disturbed")  # its passes came at 600 s
    assert [group["policy"] for group in data["groups"]] == [f"{BEST}, period 600 s", f"{BEST}, period 601 s"]
    assert data["groups"][0]["by_run"][0]["decisions"]["same_placement_frac"] == 1.0
    assert data["groups"][1]["verdict"] == NOT_SHOWN
    (orders,) = data["orders"].values()
    assert orders[0]["same_order"] is None, "without repeats the noise is unknown"
