"""Overhead models as an axis of campaigns, and how rankings change with them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau, rankdata
from support.campaign.campaign_files import SMALL, write

from testbed.errors import UserError
from testbed.packaged import find_campaign
from testbed.scheduling.campaign.digests import code_version, overheads_digest
from testbed.scheduling.campaign.file import load_campaign
from testbed.scheduling.campaign.instances import TraceSets
from testbed.scheduling.campaign.model import RankingSpec
from testbed.scheduling.campaign.plan import Plan
from testbed.scheduling.campaign.rankings import rank, ranks_of
from testbed.scheduling.campaign.rankings_drawn import write_ranking
from testbed.scheduling.campaign.report import write_report
from testbed.scheduling.campaign.results import rows_of
from testbed.scheduling.campaign.run import Place, run_units
from testbed.scheduling.campaign.sweep import Sweep
from testbed.scheduling.metrics import kendall_tau
from testbed.scheduling.simulation.overheads import Overheads
from testbed.scheduling.simulation.overheads_parser import parse_overheads

CALIBRATION = """
[overheads]
concurrent_per = "node"
memory_gb = [1.0, 2.0]
start_s = [[1000, 1000]]
save_s = [[2, 4]]
resume_s = [[3, 5]]
migration_s = [[6, 10]]
"""
DFRS = "GreedyPM */per/OPT=MIN/MINVT=600"
MODELS = ["constant:300", "calibration#constant", "calibration#extrapolate"]
ASKS = f"overheads = {MODELS!r}\nbound =".replace("'", '"')
RANKING = '\n[[rankings]]\nname = "ranking"\ntitle = "Ranks"\nmeasure = "mean_stretch"\n'


def asking(folder: Path, text: str = SMALL) -> Path:
    (folder / "mine.toml").write_text(CALIBRATION)
    return write(folder, text.replace("bound =", ASKS, 1) + RANKING)


def test_models_are_an_axis_and_one_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TESTBED_CALIBRATION", raising=False)
    path = asking(tmp_path)
    sets = TraceSets(load_campaign(path), path)
    with pytest.raises(UserError, match=r"small.toml: overheads 'calibration#constant'.*--calibration FILE"):
        Plan(sets)
    plan = Plan(sets, tmp_path / "mine.toml")
    assert [(s.overheads.name, s.policy) for s in plan.settings] == [
        (model, policy) for model in MODELS for policy in ("FCFS", "EASY", "EQUIPARTITION")
    ]
    figures = [setting.overheads.mean_penalty_s for setting in plan.settings[::3]]
    assert figures == [300.0, (5 + 9 + 6 + 10) / 4, (5 + 9 + 6 + 10) / 4]
    assert len(plan.keys()) == 8 * (9 + 2)
    monkeypatch.setenv("TESTBED_CALIBRATION", str(tmp_path / "mine.toml"))
    assert Plan(sets).keys() == plan.keys()
    (tmp_path / "mine.toml").write_text(CALIBRATION.replace("[[2, 4]]", "[[2, 5]]"))
    assert len(Plan(sets).keys() & plan.keys()) == 8 * (3 + 2)  # the bounds and the 300 s
    with pytest.raises(UserError, match=r"calibration mine.csv: expected a .toml file"):
        Plan(sets, Path("mine.csv"))
    plain = write(tmp_path, SMALL, "plain.toml")
    with pytest.raises(UserError, match=r"plain.toml: its overheads do not ask for a calibration"):
        Plan(TraceSets(load_campaign(plain), plain), tmp_path / "mine.toml")
    write(tmp_path, SMALL.replace("bound =", 'overheads = "mine.toml#constant"\nbound =', 1), "plain.toml")
    beside = Plan(TraceSets(load_campaign(plain), plain)).settings[0].overheads
    assert (beside.name, beside.resume_s.tolist()) == ("mine.toml#constant", [[7.75]])


def test_every_figure_of_a_model_is_in_its_digest(tmp_path: Path) -> None:
    def digest(text: str) -> str:
        file = tmp_path / "one.toml"
        file.write_text(text)
        return overheads_digest(parse_overheads(str(file)))

    curve = "[overheads.progress]\nyield_frac = [0.5, 1]\nserial = [0.5, 1]\nparallel = [0.5, 1]\n"
    texts = [
        CALIBRATION,
        CALIBRATION.replace("node", "cluster"),
        CALIBRATION.replace("1000, 1000", "1000, 999"),
        CALIBRATION.replace("2, 4", "2, 3"),
        CALIBRATION.replace("6, 10", "6, 9"),
        CALIBRATION + curve.replace("serial = [0.5", "serial = [0.4"),
        CALIBRATION + curve.replace("parallel = [0.5", "parallel = [0.4"),
    ]
    assert len({digest(text) for text in texts}) == len(texts)
    assert digest(CALIBRATION + curve) == digest(CALIBRATION)  # progress is the yield


def test_a_campaign_with_a_calibration_is_simulated_ranked_and_drawn(tmp_path: Path) -> None:
    path = asking(tmp_path)
    plan = Plan(TraceSets(load_campaign(path), path), tmp_path / "mine.toml")
    code = code_version()

    class Listener:
        def ended(self, result: object) -> None:
            assert not getattr(result, "faults", None)

    with Sweep(tmp_path / "out") as sweep:
        run_units(plan.units(set(), code), code, sweep, Place(1), Listener())
        results = sweep.results(code)
        rows = rows_of(plan, results)
        text = write_report(tmp_path / "out", plan, results)[-1]
    by = {(row["trace"], row["policy"], row["overheads"]): float(str(row["mean_stretch"])) for row in rows}
    for trace in {str(row["trace"]) for row in rows}:
        assert by[trace, "FCFS", "constant:300"] == by[trace, "FCFS", "calibration#constant"]
        assert by[trace, "FCFS", "calibration#extrapolate"] > by[trace, "FCFS", "constant:300"]  # starts cost
        assert by[trace, "EQUIPARTITION", "calibration#extrapolate"] == by[trace, "EQUIPARTITION", "constant:300"]
    assert (
        "  calibration#extrapolate: 3 to 10 s, starts cost, places are held while they are saved, concurrency by node"
        in text
    )
    assert "  calibration#constant: 7.5 s" in text
    assert "mean mean_stretch over 8 traces" in text
    for suffix in ("tables/ranking.csv", "tables/ranking.tex", "tables/ranking-models.csv", "figures/ranking.svg"):
        assert (tmp_path / "out" / suffix).stat().st_size > 0


def made_rows(values: dict[tuple[str, str], list[float | None]]) -> list[dict[str, object]]:
    return [
        {
            "trace": f"t{place}",
            "traces": "t",
            "policy": policy,
            "period_s": None,
            "overheads": model,
            "max_stretch": value,
        }
        for (policy, model), own in values.items()
        for place, value in enumerate(own)
    ]


class Model:
    """The part of a setting that a ranking uses."""

    def __init__(self, text: str) -> None:
        self.overheads: Overheads = parse_overheads(text)


def test_a_ranking_by_hand(tmp_path: Path) -> None:
    spec = RankingSpec(name="r", title="R & D", measure="max_stretch", digits=1)
    values: dict[tuple[str, str], list[float | None]] = {
        ("FCFS", "constant:300"): [100.0, 300.0, 1.0],
        ("EASY", "constant:300"): [40.0, 80.0, 1.0],
        (DFRS, "constant:300"): [10.0, 10.0, None],  # so the third trace counts in no mean
        ("GreedyP */OPT=MIN", "constant:300"): [8.0, 14.0, 1.0],
        ("FCFS", "constant:5"): [100.0, 300.0, 1.0],
        ("EASY", "constant:5"): [40.0, 80.0, 1.0],
        (DFRS, "constant:5"): [4.0, 5.0, 1.0],
        ("GreedyP */OPT=MIN", "constant:5"): [2.0, 2.0, 1.0],
    }
    settings = [Model("constant:300"), Model("constant:5")]
    found = rank(settings, spec, made_rows(values))  # type: ignore[arg-type]  # the part of a setting that is read
    assert (found.models, found.traces, found.about) == (["constant:300", "constant:5"], 2, ["300 s", "5 s"])
    assert found.policies == [DFRS, "GreedyP */OPT=MIN", "EASY", "FCFS"]
    assert found.ranks == [[1, 2], [2, 1], [3, 3], [4, 4]]
    assert [cell.mean for cell in found.cells[0]] == [10.0, 4.5]
    assert found.tau == [[1.0, pytest.approx(2 / 3)], [pytest.approx(2 / 3), 1.0]]
    one, other = found.best
    assert one is not None
    assert other is not None
    assert (one.policy, one.gain.mean, one.lowest, one.gain.maximum) == (DFRS, 6.0, 4.0, 8.0)
    assert (other.policy, other.gain.mean) == ("GreedyP */OPT=MIN", 30.0)
    for room in ("tables", "figures"):
        (tmp_path / room).mkdir()
    text = write_ranking(tmp_path, spec, found).splitlines()
    assert text[8].split() == [*DFRS.split(), "10.0", "1", "4.5", "2"]
    with (tmp_path / "tables" / "r-models.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [(line["best_policy"], float(line["gain_mean"])) for line in lines] == [(DFRS, 6), ("GreedyP */OPT=MIN", 30)]
    latex = (tmp_path / "tables" / "r.tex").read_text()
    assert r"\caption{R \& D}" in latex
    assert r"Mean gain over EASY & \multicolumn{2}{c}{6.0} & \multicolumn{2}{c}{30.0} \\" in latex
    assert (tmp_path / "figures" / "r.pdf").read_bytes()[:4] == b"%PDF"
    nothing = rank(settings, spec, made_rows({("FCFS", "constant:5"): [None]}))  # type: ignore[arg-type]  # as above
    assert "no trace has results of every policy" in write_ranking(tmp_path, spec, nothing)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=9))
def test_ranks_and_agreement_are_those_of_the_textbook(pairs: list[tuple[int, int]]) -> None:
    one, other = ([float(value) for value in side] for side in zip(*pairs, strict=True))
    assert ranks_of(one) == rankdata(one).tolist()
    found = kendall_tau(one, other)
    if len(set(one)) == 1 or len(set(other)) == 1:
        assert found is None
    else:
        assert found == pytest.approx(kendalltau(one, other).statistic)


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ('measure = "mean_stretch"', 'measure = "mean_stretches"', "rankings.0.measure"),
        ('name = "ranking"', 'name = "table-2"', "tables, figures and rankings with different names"),
        ('title = "Ranks"', 'title = "Ranks"\nbaseline = "EASY/2011"', "ranking: a baseline among its policies"),
        ('title = "Ranks"', 'title = "Ranks"\npolicies = ["FCFS"]', "ranking: a baseline among its policies"),
        ('bound = ["theorem1", "fluid"]', 'bound = "fluid"', "bound 'theorem1' for degradation_theorem1"),
    ],
)
def test_wrong_rankings_are_explained(tmp_path: Path, old: str, new: str, word: str) -> None:
    with pytest.raises(UserError, match=word):
        load_campaign(write(tmp_path, (SMALL + RANKING).replace(old, new, 1)))


def test_the_ready_campaign_asks_for_the_users_hardware(tmp_path: Path) -> None:
    path = find_campaign("your-hardware")
    (tmp_path / "mine.toml").write_text(CALIBRATION)
    plan = Plan(TraceSets(load_campaign(path), path), tmp_path / "mine.toml")
    assert list(dict.fromkeys(setting.overheads.name for setting in plan.settings)) == MODELS
    assert len(plan.asked) == 20
