"""Names of policies: all published ones, tolerated spellings, and messages about other names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import UserError
from testbed.scheduling.policies.catalogue import available, parse
from testbed.scheduling.policies.configuration import NotInGrammarError, catalogue, parse_configuration
from testbed.scheduling.policies.state import CHEAPEST_FIRST
from testbed.scheduling.simulation.named import named
from testbed.scheduling.workload.jobs import Job

PUBLISHED = [  # the names of [RR] Table 2, and some names in the form of its appendix
    "Greedy */OPT=MIN",
    "GreedyP */OPT=AVG",
    "GreedyPM */OPT=MIN",
    "Greedy/per/OPT=MIN",
    "GreedyP */per/OPT=MIN",
    "GreedyPM */per/OPT=MIN/MINVT=600",
    "GreedyP/per/OPT=MIN/MINVT=600",
    "MCB8 */OPT=MIN/MINVT=600",
    "MCB8/per/OPT=AVG/MINFT=300",
    "MCB8 */per/OPT=MIN/MINVT=300",
    "/per/OPT=MIN/MINVT=600",
    "/stretch-per/OPT=MAX/MINVT=600",
    "/stretch-per/OPT=AVG",
]


def test_the_catalogue_has_116_names_that_round_trip():
    names = [configuration.name for configuration in catalogue()]
    assert len(names) == len(set(names)) == 116
    assert set(PUBLISHED) <= set(names)
    for configuration in catalogue():
        assert parse_configuration(configuration.name) == configuration


def test_every_available_name_gives_the_policy_of_that_name():
    names = available()
    assert {"FCFS", "EASY", "EASY/2011", "GreedyPM */per/OPT=MIN/MINVT=600"} <= set(names)
    for name in names:
        assert parse(name).name == name
    batch = {"FCFS": False, "EASY": True, "EASY/2011": True}
    assert {name: parse(name).needs_estimates for name in batch} == batch
    assert {configuration.name for configuration in catalogue()} <= set(names)
    assert len(names) == len(set(names)) == 116 + 3 + 3 + 1 + 7 + 5


def test_the_nine_names_of_ipdps():
    greedy = ["GREEDY", "GREEDY-PMTN", "GREEDY-PMTN-MIGR", "DYNMCB8"]
    periodic = ["DYNMCB8-PER", "DYNMCB8-ASAP-PER", "DYNMCB8-STRETCH-PER"]
    for name in ["FCFS", "EASY", *greedy]:
        assert parse(name.lower()).name == name
        assert parse(name).period_s is None
    for name in periodic:
        assert parse(name).period_s == 600
        assert parse(name, period_s=90).period_s == 90
        assert parse(f"{name.lower()}-300", period_s=90).period_s == 300
        assert parse(f"{name}-300").name == f"{name}-300"
        assert parse(f"{name}-300").rules.least_flow_time_s == 30
    assert parse("DYNMCB8").rules.optimise == parse("DYNMCB8-PER").rules.optimise == CHEAPEST_FIRST
    assert [parse(name).rules.backs_off for name in greedy] == [True, False, False, False]
    for wrong in ("DYNMCB8-600", "GREEDY-300", "DYNMCB8-PER-", "DYNMCB8-PER-x"):
        with pytest.raises(UserError, match=wrong):
            parse(wrong)
    with pytest.raises(UserError, match="DYNMCB8-PER-0': the period must be positive"):
        parse("DYNMCB8-PER-0")


def test_equipartition_is_for_simulation_only():
    with pytest.raises(UserError, match="EQUIPARTITION: it shares one machine without places"):
        parse("equi partition")
    with pytest.raises(UserError, match="nearest: EQUIPARTITION"):
        parse("equipartitio")
    found = named("equi partition")
    assert (found.name, found.policy, found.loop, found.is_fractional) == ("EQUIPARTITION", None, None, False)
    assert [named(name).is_fractional for name in ("EASY", "GREEDY", "/per/OPT=MIN")] == [False, True, True]
    with pytest.raises(UserError, match="1 jobs on 0 nodes"):
        found.simulate([Job(1, 0.0, 1, 1.0, 1.0, 1.0)], 0)


@given(st.sampled_from([c.name for c in catalogue()]), st.randoms(use_true_random=False))
def test_case_and_spaces_are_forgiven(name, random):
    bare = name.replace(" ", "")
    cuts = [random.choice(["", "", " "]) for _ in bare]
    loose = "".join(
        (cut if char in "*/=" else "") + random.choice([char.lower(), char.upper()]) + (cut if char in "/=" else "")
        for char, cut in zip(bare, cuts, strict=True)
    )
    assert parse_configuration(loose).name == name
    assert parse_configuration(bare).name == name


def test_the_period_is_a_setting_of_those_that_have_one():
    assert parse("greedypm*/per/opt=min/minvt=600", period_s=120).period_s == 120
    assert parse("/per/OPT=MIN").period_s == 600
    assert parse("GreedyPM */OPT=MIN").period_s is None
    assert parse("EASY", period_s=120).period_s is None
    with pytest.raises(UserError, match="period"):
        parse("/per/OPT=MIN", period_s=0)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Greedy/OPT=MIN", "may wait for ever"),
        ("*/per/OPT=MIN", "needs an action on submission"),
        ("MCB8/stretch-per/OPT=MAX", "no action on submission"),
        ("/stretch-per/OPT=MIN", "OPT=AVG or OPT=MAX"),
        ("/per/OPT=MAX", "for stretch-per only"),
        ("GreedyP */OPT=MIN/MINVT=600", "limits MCB8"),
        ("/per/OPT=MIN/MINVT=0", "positive"),
    ],
)
def test_combinations_outside_of_table_1(name, says):
    with pytest.raises(NotInGrammarError, match=says):
        parse_configuration(name)
    with pytest.raises(UserError, match=says):
        parse(name)


@pytest.mark.parametrize(
    ("name", "near"),
    [("GreedyPM */per/OPT=MIN/MINVT", "GreedyPM */per/OPT=MIN/MINVT=600"), ("easi", "EASY"), ("FCSF", "FCFS")],
)
def test_an_unknown_name_brings_the_nearest(name, near):
    with pytest.raises(UserError, match="nearest: .*" + near.replace("*", r"\*")):
        parse(name)


@given(st.floats(0.001, 1e12))
def test_any_limit_round_trips(limit_s):
    name = f"/per/OPT=MIN/MINVT={limit_s!r}".replace(".0e", "e")
    once = parse_configuration(name)
    assert once.limit_s == limit_s
    assert parse_configuration(once.name) == once


PLUGIN = """
from testbed.errors import UserError
from testbed.scheduling.policies.batch import BatchPolicy

def sjf(name, period_s):
    if "bad" in name:
        raise UserError("sjf: bad variant")
    return BatchPolicy(f"{name}@{period_s:g}", backfill=False)
"""


def test_a_plug_in_is_found_by_its_entry_point(tmp_path, monkeypatch):
    (tmp_path / "sjf_plugin.py").write_text(PLUGIN)
    info = tmp_path / "sjf_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sjf-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[testbed.policies]\nSJF = sjf_plugin:sjf\n")
    assert "SJF" not in available()
    monkeypatch.syspath_prepend(tmp_path)
    assert "SJF" in available()
    assert parse("sjf").name == "sjf@600"
    assert parse("SJF/aged", period_s=30).name == "SJF/aged@30"
    with pytest.raises(UserError, match="bad variant"):
        parse("SJF/bad")
