"""Campaign files: accepted and refused ones, the messages of refusals, and the packaged ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.campaign.campaign_files import SMALL, write

from testbed.errors import UserError
from testbed.packaged import find_campaign, packaged_campaigns
from testbed.scheduling.campaign.conditions import Condition
from testbed.scheduling.campaign.file import load_campaign
from testbed.scheduling.campaign.instances import TraceSets
from testbed.scheduling.campaign.plan import Plan, has_period
from testbed.scheduling.campaign.ranges import numbers_of


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('name = "small"', 'nome = "small"', ["unknown key nome", "nearest: name"]),
        ('"1..3"', '"1..3"\nseed = 1', ["unknown key traces.0.seed", "nearest: seeds"]),
        ('kind = "lublin"', 'kind = "lublim"', ["traces.0.kind = 'lublim'", "lublin, log or table"]),
        ('kind = "lublin"\n', "", ["missing key traces.0.kind: expected lublin, log or table"]),
        ('"FCFS"', '"Greedyp */OPT=MINN"', ["policies", "GreedyP */OPT=MIN"]),
        ('"max_stretch"', '"max_strech"', ["figures.0.measures", "nearest: max_stretch"]),
        ('"max_stretch"', '"max_stretch"\nwhere = "lod >= 0.7"', ["figures.0.where.0", "nearest: load"]),
        ('"max_stretch"', '"max_stretch"\nwhere = "load >= high"', ["a number after load >="]),
        ('"max_stretch"', '"max_stretch"\npolicies = ["GREEDY"]', ["figure-1", "policies of the campaign"]),
        ('bound = ["theorem1", "fluid"]', 'bound = "fluid"', ["bound 'theorem1' for degradation_theorem1"]),
        ('bound = ["theorem1", "fluid"]', 'penalty_s = 3\noverheads = "constant:3"', ["penalty_s or overheads"]),
        ('bound = ["theorem1", "fluid"]', "tau_s = -1", ["tau_s = -1", "greater than or equal to 0"]),
        ('seeds = "1..3"', 'seeds = "3..1"', ["traces.0.seeds", "FIRST <= LAST"]),
        ('name = "unscaled"', 'name = "scaled"', ["traces with different names"]),
        ('name = "figure-1"', 'name = "table-2"', ["tables, figures and rankings with different names"]),
    ],
)
def test_mistakes_are_told_with_file_key_and_what_is_right(tmp_path, old, new, words):
    path = write(tmp_path, SMALL.replace(old, new, 1))
    with pytest.raises(UserError) as caught:
        load_campaign(path)
    for word in ["small.toml", *words]:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


@given(first=st.integers(0, 999), count=st.integers(1, 50), blank=st.sampled_from(["", " "]))
def test_ranges_have_both_ends(first, count, blank):
    assert numbers_of(f"{first}{blank}..{blank}{first + count - 1}") == tuple(range(first, first + count))
    assert numbers_of(first) == (first,)


def test_conditions():
    assert Condition.parse("load >= 0.7").holds({"load": 0.7})
    assert not Condition.parse("load>0.7").holds({"load": 0.7})
    assert not Condition.parse("load >= 0.7").holds({"load": None})
    assert Condition.parse("period_s <= 1200").holds({"period_s": None})  # it has no period
    assert Condition.parse("policy == GreedyPM */OPT=MIN").holds({"policy": "GreedyPM */OPT=MIN"})
    with pytest.raises(ValueError, match="== or != for traces"):
        Condition.parse("traces >= scaled")


def test_which_policies_have_a_period():
    with_one = ["/per/OPT=MIN", "GreedyPM */per/OPT=MIN/MINVT=600", "DYNMCB8-PER"]
    without = ["FCFS", "EASY", "EQUIPARTITION", "Greedy */OPT=MIN", "MCB8 */OPT=AVG", "GREEDY", "DYNMCB8-PER-300"]
    assert [has_period(name) for name in with_one] == [True] * 3
    assert [has_period(name) for name in without] == [False] * 7


def test_a_sweep_of_periods_and_penalties_simulates_nothing_twice(tmp_path):
    text = SMALL.replace('"EQUIPARTITION"', '"/per/OPT=MIN"').replace(
        "bound =", "periods_s = [600, 900, 600]\npenalty_s = [0, 300]\nbound ="
    )
    path = write(tmp_path, text)
    plan = Plan(TraceSets(load_campaign(path), path))
    found = [(s.policy, s.period_s, s.penalty_s) for s in plan.settings]
    assert found == [
        (policy, period_s, penalty_s)
        for penalty_s in (0, 300)
        for policy, period_s in (("FCFS", None), ("EASY", None), ("/per/OPT=MIN", 600), ("/per/OPT=MIN", 900))
    ]
    assert len(plan.asked) == 3 * 2 + 2
    assert len(plan.keys()) == 8 * (8 + 2)
    labels = [asked.instance.label for asked in plan.asked]
    assert labels[:3] == ["scaled/seed-1/load-0.5", "scaled/seed-1/load-0.9", "unscaled/seed-1"]
    assert [unit.label for unit in plan.units(set(), "code", limit=1)] == labels[:3]
    assert plan.left(set(), limit=1) == 3 * (8 + 2)


def test_keys_are_those_of_the_content(tmp_path):
    def keys(text):
        path = write(tmp_path, text)
        return Plan(TraceSets(load_campaign(path), path)).keys()

    before = keys(SMALL)
    assert keys(SMALL.replace('name = "unscaled"', 'name = "other"').replace("[RR]", "RR")) == before
    assert keys(SMALL.replace('"FCFS", ', "")) < before
    assert keys(SMALL.replace("seeds = [1, 2]", "seeds = [1, 2, 4]")) > before
    for old, new in (("jobs = 30", "jobs = 31"), ("nodes = 16", "nodes = 17"), ("bound =", "tau_s = 30\nbound =")):
        assert not keys(SMALL.replace(old, new)) & before
    changed = keys(SMALL.replace("bound =", "penalty_s = 299\nbound ="))
    assert len(changed & before) == 8 * 2  # the bounds


def test_job_tables_and_weeks_of_a_log(tmp_path, monkeypatch):
    head = "job_id,submit_time_s,tasks,cpu_need_frac,mem_req_frac,run_time_s\n"
    (tmp_path / "b.csv").write_text(head + "1,0,1,1.0,0.4,300\n2,10,1,1.0,0.4,30\n")
    (tmp_path / "a.csv").write_text(head + "1,5,1,1.0,0.4,300\n2,604900,1,1.0,0.4,30\n3,1814500,1,1.0,0.4,30\n")
    text = """
name = "files"
policies = ["FCFS"]
[[traces]]
name = "tables"
kind = "table"
nodes = 2
files = "*.csv"
[[traces]]
name = "weeks"
kind = "log"
nodes = 2
path = "a.csv"
weeks = WEEKS
"""
    path = write(tmp_path, text.replace("WEEKS", '"all"'))
    plan = Plan(TraceSets(load_campaign(path), path))
    labels = [asked.instance.label for asked in plan.asked]
    assert sorted(labels) == ["tables/a.csv", "tables/b.csv", "weeks/week-0", "weeks/week-1", "weeks/week-3"]
    recipes = {unit.label: unit.recipe for unit in plan.units(set(), "code")}
    assert [job.submit_time_s for job in recipes["tables/a.csv"].make()] == [5, 604900, 1814500]
    assert [job.submit_time_s for job in recipes["weeks/week-1"].make()] == [100]
    path = write(tmp_path, text.replace("WEEKS", "[1, 2]"))
    with pytest.raises(UserError, match=r"no job was submitted in week 2 of a.csv"):
        Plan(TraceSets(load_campaign(path), path))
    path = write(tmp_path, text.replace("WEEKS", '"whole"'))
    asked = [asked.instance for asked in Plan(TraceSets(load_campaign(path), path)).asked]
    assert {(each.label, each.file.name) for each in asked if each.traces == "weeks"} == {("weeks/whole", "a.csv")}
    path = write(tmp_path, text.replace("WEEKS", '"whole"').replace('path = "a.csv"', 'path = "none.csv"'))
    monkeypatch.setenv("TESTBED_TRACES", str(tmp_path / "logs"))
    with pytest.raises(UserError, match=r"no trace none.csv in .*logs.*TESTBED_TRACES"):
        Plan(TraceSets(load_campaign(path), path))


def test_ready_campaigns_are_those_of_the_papers_and_of_the_price_of_moves():
    ready = {name: load_campaign(path) for name, path in packaged_campaigns().items()}
    assert {name: len(campaign.policies) for name, campaign in ready.items()} == {
        "ipdps-tables": 9, "knows-cost": 21, "rr7659-catalogue": 119, "rr7659-hpc2n": 21, "rr7659-periods": 3,
        "rr7659-scaled": 21, "rr7659-unscaled": 21, "your-hardware": 10,
    }  # fmt: skip
    for name, campaign in ready.items():
        assert campaign.name == name
        assert campaign.tables or campaign.figures
    names = ready["rr7659-scaled"].policies[3:]
    assert len(names) == 18
    assert all("OPT=MIN" in name for name in names[:-1])
    assert sum("MINVT=600" in name for name in names) == 9  # 4 greedy, 3 with MCB8, /per and /stretch-per
    assert find_campaign("rr7659-scaled") == packaged_campaigns()["rr7659-scaled"]
    with pytest.raises(UserError, match="nearest: rr7659-scaled"):
        find_campaign("rr7659-scale")
