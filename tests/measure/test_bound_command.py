"""`testbed bound`: its output, and its messages about mistakes."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from testbed.cli.bound import bound
from testbed.errors import UserError
from testbed.scheduling.bound import max_stretch as measure
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.trace import load_trace, save_trace

WEEK_S = 604_800.0
# Three jobs at once on one node in the first week; in the second, two of which the wide one makes (1d) bind.
TABLE = [
    *(Job(number, 5.0, 1, 1.0, 0.5, 60.0) for number in (1, 2, 3)),
    Job(4, WEEK_S, 2, 1.0, 0.1, 10.0),
    Job(5, WEEK_S, 1, 1.0, 0.1, 100.0),
]


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "t.csv"
    save_trace(path, TABLE)
    return path


def run(*arguments):
    result = CliRunner().invoke(bound, [str(word) for word in arguments], standalone_mode=False, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_json_holds_the_bound_and_what_it_is_of(table):
    figures = json.loads(run(table, "--nodes", 2, "--week", 1, "--json"))
    assert figures.pop("elapsed_s") > 0
    assert figures.pop("bound") == pytest.approx(120 / 110, rel=2e-4)
    assert figures == {"kind": "theorem1", "jobs": 2, "nodes": 2, "tau_s": 10.0, "accuracy_frac": 1e-4}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--nodes", 1, "--week", 0], 3.0),
        (["--nodes", 2, "--week", 1, "--kind", "fluid"], 1.0),
        (["--nodes", 1, "--week", 0, "--tau-s", 90], 2.0),
    ],
)
def test_options_reach_the_bound(table, options, expected):
    assert json.loads(run(table, "--json", *options))["bound"] == pytest.approx(expected, rel=2e-4)


def test_the_table_shows_the_same(table):
    shown = dict(line.split() for line in run(table, "--nodes", 1).splitlines())
    figures = json.loads(run(table, "--nodes", 1, "--json"))
    assert list(shown) == list(figures)
    assert (shown["bound"], shown["kind"], shown["jobs"]) == (f"{figures['bound']:.6g}", "theorem1", "5")


def test_a_log_is_bounded_under_a_reading(tmp_path):
    log = tmp_path / "log.swf"
    log.write_text("7 100 0 50 4 -1 -1 4 60 -1 1 1 1 1 1 1 -1 -1\n")
    figures = json.loads(run(log, "--reading", "hpc2n", "--nodes", 1, "--json"))
    assert figures["bound"] == pytest.approx(measure.bound(load_trace(log, "hpc2n"), 1)) == pytest.approx(2.0, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--nodes", 0], r"--nodes 0: expected 1 or more"),
        (["--nodes", 1, "--tau-s", -1], r"--tau-s -1: expected seconds, 0 or more"),
        (["--nodes", 1, "--tau-s", "nan"], r"--tau-s nan: expected seconds"),
        (["--nodes", 1, "--week", 9], r"no job was submitted in week 9"),
        (["--nodes", 1, "--week", -1], r"segment week -1: expected 0 or more"),
        (["--nodes", 1, "--reading", "hpc2n"], r"t\.csv: a job table takes no reading"),
    ],
)
def test_mistakes_are_told(table, options, message):
    with pytest.raises(UserError, match=message):
        run(table, *options)


def test_it_is_a_command_with_an_example_and_quick_help():
    code = (
        "import sys; sys.argv = ['testbed', 'bound', '--help']\n"
        "from testbed.cli.main import main\n"
        "try: main()\n"
        "finally: print([name for name in sys.modules if name.startswith(('numpy', 'numba', 'testbed.measure'))])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "\n    testbed bound HPC2N" in result.stdout
    assert result.stdout.endswith("[]\n")
