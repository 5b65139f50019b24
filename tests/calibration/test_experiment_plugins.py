"""Experiments of other packages: treated as built-in ones, checked, and isolated from others when they fail."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from support.calibration.synthetic_lab import synthetic_trials
from support.calibrations import read_calibration

from testbed.cli.calibrate import calibrate as command
from testbed.errors import UserError
from testbed.lab.bring_up import dry_lab
from testbed.lab.virtual_time import run_in_virtual_time
from testbed.scenario.schema import load_lab
from testbed.study.calibration.checked import checked_observations, checked_quantities, checked_values
from testbed.study.calibration.from_trials import calibrate_from
from testbed.study.calibration.model import Quantity
from testbed.study.calibration.model_file import calibration_text
from testbed.study.calibration.registry import broken_experiments, find_experiments, known
from testbed.study.calibration.session import Order, calibrate
from testbed.study.calibration.tables import all_tables, as_json
from testbed.study.calibration.trials import Outcome, Trials
from testbed.study.report.calibration.page import calibration_page, write_calibration_report
from testbed.study.report.page import document as page_module
from testbed.study.report.page.style import Absent, Chart

BUILT_IN = (
    "save-restore", "mpi-save-restore", "transfer", "live-migration", "start", "beside", "enactment", "bus",
    "decision", "cap-accuracy", "cap-response", "share-accuracy", "proportionality", "isolation", "virtualisation",
)  # fmt: skip

HEAD = """
import numpy as np
from testbed.study.calibration.assumptions import judged
from testbed.study.calibration.experiment import Experiment
from testbed.study.calibration.model import Assumption, Outlier, Quantity
from testbed.study.calibration.quantities import Quantities, column
from testbed.errors import RunError
from testbed.study.report.calibration.data import Clocks, Series
from testbed.study.report.page.style import Absent, Chart


class Own(Experiment):
    name = "own"
    about = "an experiment of another package"

    def conditions(self, lab, *, quick):
        return [{"size": size} for size in (1, 2)]

    async def trial(self, lab, condition):
        return [{"seen_s": condition["size"] * 0.5}]

    def quantities(self, trials):
        found = Quantities(trials)
        found.median("own_s", "s", column(trials, "seen_s"), {})
        return found

    def assumptions(self, quantities):
        return {"own": judged("Own is free.", "[own]", [])}

    def figures(self, measured):
        rows = measured.rows("seen_s")
        if not rows:
            return [measured.absent("own", "Own")]
        return [Chart("own", "Own", "what was seen", "own", lambda figure: figure.add_subplot().plot([1, 2]))]
"""


@pytest.fixture
def plugin(install_plugin):
    """Return a function that installs an experiment `own`, with some of its methods replaced."""

    def install(methods="", points="own = own_experiment:Own", head=HEAD):
        body = "".join(f"    {line}\n" if line else "\n" for line in methods.split("\n"))
        return install_plugin("own_experiment", f"{head}\n{body}", f"[testbed.experiments]\n{points}\n")

    return install


def own_trials(*seen_s):
    """Return trials of `own` after those of two other experiments."""
    others = synthetic_trials(3, only=("bus", "start"))
    own = [
        Outcome(trial=900 + block, experiment="own", block=block, condition={"size": 1}, observations=({"seen_s": s},))
        for block, s in enumerate(seen_s)
    ]
    return Trials(others.begin, [*others.outcomes, *own])


@pytest.fixture
def words_only(monkeypatch):
    """Leave out the drawings, which take most of the time."""
    monkeypatch.setattr(page_module, "inline_svg", lambda _chart, _width_in, variant: f"<svg class={variant}></svg>")


# --- discovery


def test_built_in_experiments_are_found_like_all_others_and_come_first(plugin):
    assert known() == BUILT_IN
    plugin()
    assert known() == (*BUILT_IN, "own")
    assert [one.name for one in find_experiments(["own", "bus"])] == ["bus", "own"]
    assert broken_experiments() == {}
    with pytest.raises(UserError, match=r"experiment 'owl': expected one of save-restore, .*, own; nearest: own"):
        find_experiments(["owl"])


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise OSError('no such device')", "OSError: no such device"),
        ("Own = 3", "expected a class derived from Experiment, found 3"),
        ("class Own: pass", "expected a class derived from Experiment"),
        (HEAD.replace('name = "own"', 'name = "other"'), "name 'other': expected the name of its entry point"),
        (HEAD.replace("async def trial", "async def run"), "abstract"),
        (HEAD.replace('name = "own"', 'name = "own"\n    order = None'), "order None: expected a whole number"),
        (HEAD.replace('name = "own"', 'name = "own"\n    section = 3'), "expected texts as about and section"),
    ],
)
def test_one_that_does_not_load_leaves_the_others(plugin, code, why):
    plugin(head=code)
    assert known() == BUILT_IN
    assert list(broken_experiments()) == ["own"]
    assert broken_experiments()["own"].startswith("experiment 'own' (own_experiment:Own): ")
    assert why in broken_experiments()["own"]
    with pytest.raises(UserError, match=r"experiment 'own' \(own_experiment:Own\): "):
        find_experiments(["own"])
    listed = CliRunner().invoke(command, ["--list", "--json"])
    assert [one["experiment"] for one in json.loads(listed.stdout)] == list(BUILT_IN)
    assert listed.stderr.count("experiment 'own' (own_experiment:Own)") == 1


def test_an_installation_without_experiments_is_told_so(monkeypatch):
    monkeypatch.setattr("testbed.study.calibration.registry.entry_points", lambda **_group: [])
    with pytest.raises(UserError, match=r"no entry point of the group testbed.experiments: .* install it again"):
        find_experiments()


def test_nobody_takes_the_name_of_a_built_in_experiment(plugin):
    plugin(points="bus = own_experiment:Own")
    assert known() == BUILT_IN
    assert type(find_experiments(["bus"])[0]).__module__ == "testbed.study.calibration.experiments.bus"
    owner = "testbed.study.calibration.experiments.bus:BusLatency"
    taken = f"experiment 'bus' (own_experiment:Own): the name is taken by {owner}"
    assert broken_experiments() == {"bus": taken}


def test_experiments_load_without_what_only_figures_and_queries_need():
    code = (
        "import sys\n"
        "from testbed.study.calibration.from_trials import calibrate_from\n"
        "from testbed.study.calibration.registry import known\n"
        "assert len(known()) >= 15\n"
        "print(sorted({'matplotlib', 'polars', 'jinja2', 'numba'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- its results


def test_its_quantities_verdicts_and_figures_are_in_file_tables_json_and_page(plugin, words_only, tmp_path):
    plugin()
    trials = own_trials(1.0, 2.0, 3.0)
    found = calibrate_from(trials)
    (own,) = found.find("own_s")
    assert (own.value, own.unit, own.n) == (2.0, "s", 3)
    path = tmp_path / "calibration.toml"
    path.write_text(calibration_text(found))
    assert read_calibration(path).find("own_s")[0].value == 2.0
    assert any(row[0] == "own_s" for table in all_tables(found) for row in table.rows)
    assert [one["value"] for one in as_json(found)["quantities"] if one["name"] == "own_s"] == [2.0]
    assert found.assumptions["own"].statement == "Own is free."
    write_calibration_report(trials, found, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert '<figure id="own"' in page
    assert "Other experiments" in page
    assert "Own is free." in page


def test_trials_of_one_that_is_not_installed_are_named():
    found = calibrate_from(own_trials(1.0, 2.0))
    assert found.about.notes[-1] == "experiment own: not installed here; its 2 trials give no quantities"
    assert found.find("bus_round_trip_s")


RAISES = "return trials[0].condition['none']"
NO_QUANTITIES = "return [1.0]"
TWICE = "found.median('own_s', 's', column(trials, 'seen_s'), {})"
OUTLIER = "found.outliers.append(Outlier('own_s', 1, float('inf'), 1, 1))"


def quantity(name="own_s", value="1.0", low="0.5", high="2.0", unit="s", n="3", observations="3", condition="{}"):
    given = f"{name!r}, {value}, {low}, {high}, {unit!r}, {n}, {observations}, condition={condition}"
    return f"found.found.append(Quantity({given}))"


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        (RAISES, "experiment own: KeyError: 'none'"),
        (NO_QUANTITIES, "experiment own: [1.0]: expected Quantities"),
        ("found.found.append(1.0)", "experiment own: 1.0: expected a Quantity"),
        (quantity(value="np.nan"), "quantity own_s: value nan: expected a finite number"),
        (quantity(value="'1'"), "quantity own_s: value '1': expected a number"),
        (quantity(low="3.0"), "quantity own_s: interval 3 to 2: expected low <= high, or NaN for both"),
        (quantity(high="np.nan"), "quantity own_s: interval 0.5 to nan: expected low <= high, or NaN for both"),
        (quantity(unit="ms"), "quantity own_s: unit 'ms': expected 's' of a name that ends in _s"),
        (quantity("own"), "quantity own: unit 's': expected a name that ends in _s"),
        (quantity(unit=""), "quantity own_s: unit '': expected 1 to 20 characters"),
        (quantity("Own S"), "quantity 'Own S': expected a name of small letters"),
        (quantity("start_s"), "quantity start_s: expected another name: experiment start has one"),
        (quantity(n="0", observations="0"), "quantity own_s: 0 trials, 0 observations: expected at least one trial"),
        (quantity(n="1.5"), "quantity own_s: 1.5 trials, 3 observations: expected whole numbers"),
        (quantity(condition="{'x': [1]}"), "quantity own_s: condition: x = [1]: expected a finite number or a text"),
        (f"{TWICE}; {TWICE}", "quantity own_s: condition {}: expected each condition once"),
        (OUTLIER, "expected finite numbers"),
    ],
)
def test_wrong_quantities_cost_their_experiment_and_no_other(plugin, statement, why):
    trials = own_trials(1.0, 2.0, 3.0)
    without = calibrate_from(trials)
    plugin(f"def quantities(self, trials):\n    found = Quantities(trials)\n    {statement}\n    return found")
    found = calibrate_from(trials)
    assert found.find("own_s") == []
    assert "own" not in found.assumptions
    (note,) = [note for note in found.about.notes if "own" in note]
    assert note.startswith("experiment own")
    assert why in note
    assert note.endswith("; its quantities are left out")
    assert "\n" not in note
    assert as_json(found) | {"about": None} == as_json(without) | {"about": None}
    assert calibration_text(found)


@pytest.mark.parametrize(
    ("result", "why"),
    [
        ("1 / 0", "experiment own: ZeroDivisionError: division by zero"),
        ("[1]", "experiment own: [1]: expected assumptions by name"),
        ("{'Own': None}", "experiment own: assumption 'Own': expected a name of small letters"),
        ("{'own': 'held'}", "experiment own, assumption own: 'held': expected an Assumption"),
        ("{'own': Assumption('good', 0.1, 'a', 'b', 'c')}", "verdict 'good': expected one of held, within, broken"),
        ("{'own': Assumption('held', 0.1, '', 'b', 'c')}", "expected texts, and a statement"),
        ("{'own': Assumption('held', None, 'a', 'b', 'c')}", "within_frac None: expected a number"),
        ("{'free_start': judged('Free.', '', [])}", "assumption free_start: expected another name: experiment start"),
    ],
)
def test_wrong_verdicts_leave_the_quantities(plugin, result, why):
    plugin(f"def assumptions(self, quantities):\n    return {result}")
    found = calibrate_from(own_trials(1.0, 2.0))
    assert found.find("own_s")[0].n == 2
    assert "own" not in found.assumptions
    assert found.assumptions["free_start"].statement == "Starting a job costs nothing."
    (note,) = [note for note in found.about.notes if "own" in note]
    assert why in note
    assert note.endswith("; its assumptions are left out")


@pytest.mark.parametrize(
    ("result", "why"),
    [
        ("[1 / 0]", "experiment own: ZeroDivisionError: division by zero"),
        ("['own']", "experiment own: 'own': expected a Chart or an Absent"),
        ("[Absent('a b', '', '')]", "experiment own: figure 'a b': expected a name of small letters"),
        ("[Absent('a', '', '')] * 2", "experiment own: figure a: expected a name of its own"),
        ("[Absent('calibration_bus', '', '')]", "experiment own: figure calibration_bus: expected a name of its own"),
        ("[Absent('quantities', '', '')]", "experiment own: figure quantities: expected a name of its own"),
        ("[Chart('a', 'b', None, 'd', print)]", "experiment own: figure a: ('b', None, 'd'): expected texts"),
    ],
)
def test_wrong_figures_cost_their_experiment_and_no_other(plugin, result, why):
    trials = own_trials(1.0, 2.0)
    plugin(f"def figures(self, measured):\n    return {result}")
    page = calibration_page(trials, calibrate_from(trials))
    figures = {one.name: one for section in page.sections for one in section.figures}
    assert isinstance(figures["calibration_bus"], Chart)
    assert isinstance(figures["failed_own"], Absent)
    assert why in figures["failed_own"].reason
    assert any(why in remark for remark in page.remarks)


SERIES = "Series('mine', measured.rows('seen_s'), '{}')"
CLOCKS = "Clocks('mine', 'x', 'y', np.array([{}]), np.array([1.0, 2.0]), measured.rows('seen_s'))"


@pytest.mark.parametrize(
    ("method", "part", "why"),
    [
        ("headlines", "'own'", "experiment own: 'own': expected a Headline; its headlines are left out"),
        ("penalties", "'own'", "experiment own: 'own': expected a Series"),
        ("penalties", SERIES.format("none"), "experiment own: Series 'mine': expected finite numbers of every row"),
        ("penalties", "Series('mine', [], 'seen_s')", "experiment own: Series 'mine': expected finite numbers"),
        ("clocks", "'own'", "experiment own: 'own': expected a Clocks"),
        ("clocks", CLOCKS.format("1.0"), "experiment own: Clocks 'mine': expected finite numbers of every row"),
        ("clocks", CLOCKS.format("1.0, np.nan"), "experiment own: Clocks 'mine': expected finite numbers of every row"),
    ],
)
def test_wrong_parts_of_common_figures_cost_nobody_else(plugin, method, part, why):
    plugin(f"def {method}(self, measured):\n    return [{part}]")
    trials = own_trials(1.0, 2.0)
    page = calibration_page(trials, calibrate_from(trials))
    assert any(why in remark for remark in page.remarks)
    assert any("start to first progress" in one.label for one in page.headlines)
    assert "own" in {one.name for one in page.charts}


def test_reschedulings_of_another_experiment_join_the_common_figures(plugin):
    plugin(
        f"def penalties(self, measured):\n    return [{SERIES.format('seen_s')}]\n"
        f"def clocks(self, measured):\n    return [{CLOCKS.format('1.0, 2.0')}]"
    )
    trials = own_trials(1.0, 2.0)
    charts = {one.name: one for one in calibration_page(trials, calibrate_from(trials)).charts}
    assert "mine: 1.5 (" in charts["calibration_penalty"].caption
    assert "mine: y minus x 0 (" in charts["calibration_clocks"].caption


def test_a_figure_that_cannot_be_drawn_says_so_in_its_place(plugin, tmp_path):
    plugin(
        "def figures(self, measured):\n"
        "    def draw(figure):\n"
        "        figure.add_subplot().plot([1, 2], [1, 2, 3])\n"
        "    return [Chart('own', 'Own', 'caption', 'alt', draw)]"
    )
    trials = own_trials(1.0, 2.0)
    write_calibration_report(trials, calibrate_from(trials), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "experiment own: this figure cannot be drawn:" in page
    assert "ValueError: x and y must have same first dimension" in page
    assert page.count("<figure id=") == 3


# --- its trials


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "Two-Nodes.toml"
    path.write_text('[[nodes]]\nname = "node-a"\nmemory_mib = 1000\n[[nodes]]\nname = "node-b"\nmemory_mib = 1000\n')
    return load_lab(path)


def run(scenario, place, blocks=2):
    said = []
    order = Order(scenario, tuple(find_experiments(["bus", "own"])), blocks, seed=1, quick=True)
    return run_in_virtual_time(calibrate(order, place, dry_lab, said.append, lambda _step: None)), said


def test_numbers_of_numpy_are_journalled_as_plain_ones(plugin, scenario, tmp_path):
    plugin("async def trial(self, lab, condition):\n    return [{'seen_s': np.float64(0.5), 'many': np.int64(3)}]")
    trials, _ = run(scenario, tmp_path / "c")
    assert [one.observations for one in trials.of("own")] == [({"seen_s": 0.5, "many": 3},)] * 4
    assert calibrate_from(trials).find("own_s")[0].value == 0.5


@pytest.mark.parametrize(
    ("result", "error"),
    [
        ("{}['none']", "KeyError: 'none'"),
        ("None", "experiment own: None: expected a list of observations"),
        ("[3]", "experiment own: observation: 3: expected a table of numbers and texts by name"),
        ("[{'seen_s': float('nan')}]", "experiment own: observation: seen_s = nan: expected a finite number or a text"),
        ("[{'seen s': 1.0}]", "experiment own: observation: name 'seen s': expected small letters, digits and '_'"),
    ],
)
def test_a_trial_that_raises_or_returns_nonsense_failed_and_the_others_are_done(
    plugin, scenario, tmp_path, result, error
):
    plugin(f"async def trial(self, lab, condition):\n    return {result} if condition['size'] == 1 else []")
    trials, _ = run(scenario, tmp_path / "c")
    assert {one.error for one in trials.failed()} == {error}
    assert len(trials.failed()) == 2
    assert len(trials.of("bus")) == len(trials.of("own")) == 2
    assert calibrate_from(trials).find("bus_round_trip_s")


@pytest.mark.parametrize(
    ("method", "result", "why"),
    [
        ("why_not(self, lab)", "lab.none", "its conditions failed: AttributeError: "),
        ("conditions(self, lab, *, quick)", "[]", "experiment own: no condition: expected one at least"),
        ("conditions(self, lab, *, quick)", "[{'a': None}]", "experiment own: condition: a = None: expected"),
        ("conditions(self, lab, *, quick)", "[{}, {}]", "experiment own: condition {}: expected each condition once"),
        ("expected_s(self, condition, lab)", "-1", "experiment own: expected_s -1 of condition {'size': 1}"),
    ],
)
def test_an_experiment_without_proper_conditions_is_left_out(plugin, scenario, tmp_path, method, result, why):
    plugin(f"def {method}:\n    return {result}")
    trials, said = run(scenario, tmp_path / "c")
    assert len(trials.of("bus")) == 2
    assert trials.of("own") == []
    assert trials.begin["skipped"]["own"].startswith(why)
    assert said == [f"own: not on this lab: {trials.begin['skipped']['own']}"]


# --- the checks

NAMES = st.from_regex(r"[a-z][a-z0-9]{0,5}(_[a-z0-9]{1,4}){0,2}", fullmatch=True)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@given(st.dictionaries(NAMES, st.one_of(NUMBERS, st.integers(-(2**60), 2**60), st.text(max_size=9)), max_size=4))
def test_values_that_are_right_stay_as_they_are(values):
    assert checked_values(values, "x") == values
    packed = {name: np.float64(value) if isinstance(value, float) else value for name, value in values.items()}
    found = checked_observations("x", [packed])
    assert found == (values,)
    assert all(type(value) in {float, int, str} for value in found[0].values())


@given(st.one_of(st.none(), st.booleans(), st.binary(), st.lists(st.integers()), st.sampled_from([math.nan, math.inf])))
def test_no_other_value_passes(value):
    with pytest.raises(UserError, match=r"^x: y = .*: expected a finite number or a text$"):
        checked_values({"y": value}, "x")


def test_quantities_of_numpy_become_plain_and_nothing_else_changes():
    plain = Quantity("a_s", 1.0, 0.5, math.inf, "s", 2, 3, condition={"memory_mib": 64})
    packed = replace(plain, value=np.float64(1.0), condition={"memory_mib": np.int64(64)})
    (found,) = checked_quantities("x", [packed], {})
    assert found.value == 1.0
    assert type(found.value) is float
    assert type(found.condition["memory_mib"]) is int
    assert checked_quantities("x", [plain], {}) == [plain]


@pytest.mark.parametrize(("name", "unit"), [
    ("a_s", "s"), ("a_mib_per_s", "MiB/s"), ("a_per_s", "1/s"), ("a_points", "points"), ("a_frac", "1"), ("a", "1"),
    ("a_ratio", "1"), ("a_mib", "MiB"), ("power_w", "W"), ("a_cores", "cores"),
])  # fmt: skip
def test_units_agree_with_names(name, unit):
    assert checked_quantities("x", [Quantity(name, 1.0, math.nan, math.nan, unit, 1, 1)], {})
    with pytest.raises(UserError, match=rf"^experiment x, quantity {name}: unit"):
        checked_quantities("x", [Quantity(name, 1.0, math.nan, math.nan, "MiB" if unit != "MiB" else "s", 1, 1)], {})
