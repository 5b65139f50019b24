"""`testbed place`: figures, the written placement, exit codes, and invalid input."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from support.live import HANG_S

from testbed.cli.place import place
from testbed.errors import UserError
from testbed.scheduling.static.algorithms import ALGORITHMS
from testbed.scheduling.static.problem import minimum_yield, problem_of
from testbed.scheduling.workload.table import read_table

HEAD = "job_id,submit_time_s,tasks,cpu_need_frac,mem_req_frac,run_time_s\n"
JOBS = HEAD + "1,0,3,0.6,0.4,60\n2,0,2,0.9,0.3,60\n3,0,1,0.3,0.2,60\n"


def asked(folder: Path, *words: str, jobs: str = JOBS) -> Result:
    (folder / "jobs.csv").write_text(jobs)
    words = (str(folder / "jobs.csv"), "--time-limit-s", str(HANG_S), *words)
    return CliRunner().invoke(place, words, standalone_mode=False)


def test_the_written_placement_has_the_printed_minimum_yield(tmp_path: Path) -> None:
    out = tmp_path / "placement.csv"
    done = asked(tmp_path, "--nodes", "3", "--json", "--out", str(out))
    assert done.return_value == 0
    found = json.loads(done.stdout)
    problem = problem_of(read_table(tmp_path / "jobs.csv"), 3)
    assert (found["tasks"], found["nodes"], found["bound"]) == (6, 3, problem.bound)
    assert [row["algorithm"] for row in found["results"]] == list(ALGORITHMS)
    best = max(row["minimum_yield"] for row in found["results"])
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["job_id"], row["task"]) for row in rows] == [
        ("1", "0"), ("1", "1"), ("1", "2"), ("2", "0"), ("2", "1"), ("3", "0"),
    ]  # fmt: skip
    assert minimum_yield(problem, np.array([int(row["node"]) for row in rows])) == best


def test_what_fits_nowhere_is_told_and_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "placement.csv"
    done = asked(tmp_path, "--nodes", "1", "--out", str(out))
    assert done.return_value == 1
    assert done.stdout.count("not placed") == len(ALGORITHMS)
    assert not out.exists()


def test_without_scipy_the_algorithms_that_need_it_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "scipy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "scipy", None)
    done = asked(tmp_path, "--nodes", "3", "--json")
    rows = {row["algorithm"]: row for row in json.loads(done.stdout)["results"]}
    assert {name for name, row in rows.items() if "need SciPy" in row["note"]} == {"MILP", "RRND", "RRNZ"}
    assert rows["MCB8"]["placed"]
    assert done.return_value == 0
    alone = asked(tmp_path, "--nodes", "3", "--algorithm", "MILP")
    assert isinstance(alone.exception, UserError)
    assert "need SciPy" in str(alone.exception)


@pytest.mark.parametrize(
    ("words", "jobs", "said"),
    [
        (["--nodes", "0"], JOBS, "nodes = 0: expected from 1"),
        (["--nodes", "2", "--time-limit-s", "nan"], JOBS, "--time-limit-s nan: expected seconds, more than 0"),
        (["--nodes", "2", "--time-limit-s", "0"], JOBS, "--time-limit-s 0: expected seconds, more than 0"),
        (["--nodes", "2", "--algorithm", "MCB9"], JOBS, "nearest: MCB8"),
        (["--nodes", "2"], HEAD, ""),
    ],
)
def test_invalid_input_is_one_line(tmp_path: Path, words: list[str], jobs: str, said: str) -> None:
    done = asked(tmp_path, *words, jobs=jobs)
    assert isinstance(done.exception, UserError), done.exception
    assert said in str(done.exception)
    assert "\n" not in str(done.exception)


def test_a_placement_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = asked(tmp_path, "--nodes", "3", "--algorithm", "GR", "--out", str(tmp_path / "file" / "x.csv"))
    assert isinstance(done.exception, UserError), done.exception
    assert str(tmp_path / "file" / "x.csv") in str(done.exception)
