"""`testbed validate`: all errors in one call, with their lines; and lines of keys in any TOML file."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from testbed.cli.validate import validate as command
from testbed.control.validation import Finding, validate
from testbed.packaged import packaged_scenarios
from testbed.toml_lines import line_of

WRONG = """\
name = "Mine"
policy = ["EASY"]
time_scal = 60

[workload]
trace = "jobs.csv"

[[nodes]]
name = "a"
cpus = 1

[[nodes]]
name = "b"
cpus = -1
memory_mib = "much"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "s.toml"
    path.write_text(text)
    return path


def test_all_errors_are_told_with_line_key_value_and_the_nearest(tmp_path: Path) -> None:
    found = validate(written(tmp_path, WRONG))
    assert [each.line for each in found] == [1, 3, 14, 15]
    assert found[0].text.startswith("name = 'Mine': expected 1 to 63 of a-z")
    assert "unknown key time_scal; nearest: time_scale" in found[1].text
    assert found[2].text.startswith("nodes.1.cpus = -1")
    assert found[3].text.startswith("nodes.1.memory_mib = 'much'")


def test_names_of_policies_and_sizes_of_jobs_are_checked_too(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(
        "job_id,submit_time_s,tasks,cpu_need_frac,mem_req_frac,run_time_s\n1,0,3,1.0,0.9,60\n2,0,9,1.0,0.9,60\n"
    )
    text = 'name = "x"\npolicy = [\n  "ESAY",\n  "MCB8 */OPT=MIN",\n]\n'
    text += '[workload]\ntrace = "jobs.csv"\n[[nodes]]\nname = "a"\n'
    found = validate(written(tmp_path, text))
    assert [each.line for each in found] == [2, 8]
    assert "nearest: EASY" in found[0].text
    assert "job 1: tasks = 3 with mem_req_frac = 0.9 and cpu_need_frac = 1 do not fit on 1 nodes" in found[1].text
    missing = validate(written(tmp_path, text.replace("jobs.csv", "none.csv").replace("ESAY", "EASY")))
    assert [each.line for each in missing] == [6]


LUBLIN = "[workload.lublin]\njobs = 3\nnodes = 2\nseed = 1\nload = 0.5\n"


@pytest.mark.parametrize(
    ("head", "nodes", "said"),
    [
        ("", 'driver = "proces"', "nearest: process"),
        ("", "cpus = 3.0", "expected the same cpus and memory_mib on every node"),
        ('recorders = ["nothing"]\n', "", "unknown recorder 'nothing'"),
        ('policy = "/per/OPT=MIN/KNOWS=cost"\n', "", "expected a model in the scenario"),
    ],
)
def test_what_a_run_would_refuse_is_an_error(tmp_path: Path, head: str, nodes: str, said: str) -> None:
    policy = "" if "policy" in head else 'policy = "EASY"\n'
    text = f'name = "x"\n{policy}{head}{LUBLIN}[[nodes]]\nname = "a"\n{nodes}\n[[nodes]]\nname = "b"\n'
    (found,) = validate(written(tmp_path, text))
    assert said in found.text
    place = "recorders" if "recorders" in head else "driver" if "driver" in nodes else "[[nodes]]"
    assert found.line == (1 if "KNOWS" in head else text[: text.index(place)].count("\n") + 1)


PACED = "job_id,submit_time_s,tasks,cpu_need_frac,mem_req_frac,run_time_s,true_need_frac\n1,0,1,0.5,0.5,60,0.25\n"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ('policy = "/per/OPT=MIN/KNOWS=cost"\noverheads = "none.toml"\n', 3, "none.toml"),
        ('policy = "EASY"\n[migration]\nmechanism = "cheaper"\n', 1, "compares measured costs"),
        ('policy = "EASY"\n[broker]\naddress = "mosquito"\n', 4, "expected mqtts://"),
        ('policy = "EASY"\nworkload.trace = "none.csv"\n', 3, "none.csv"),
        ('policy = "EASY"\nworkload.trace = "jobs.csv"\n', 4, "job 1: true_need_frac = 0.25"),
        ('policy = "MCB8 */OPT=MIN/NEEDS=discovered"\n', 3, "expected [programs] profile"),
        ('policy = "EASY"\non_guest_loss = "stop"\n', 3, "on_guest_loss = 'stop'"),
        ('policy = "EASY"\n[box]\n[[nodes]]\nname = "broker"\n', 3, "the name of another part of the lab"),
    ],
)
def test_each_error_is_told_at_its_own_line(tmp_path: Path, text: str, line: int, said: str) -> None:
    (tmp_path / "jobs.csv").write_text(PACED)
    nodes = "" if "[[nodes]]" in text else '[[nodes]]\nname = "a"\n'
    workload = "" if "workload" in text else "[workload]\n"
    found = validate(written(tmp_path, f'name = "x"\n{text}{nodes}{workload}'))
    assert [(each.line, said in each.text) for each in found] == [(line, True)], found


@pytest.mark.parametrize("value", ["1" * 5000, "[" * 3000])
def test_a_file_that_no_parser_can_read_is_one_error(tmp_path: Path, value: str) -> None:
    (found,) = validate(written(tmp_path, f"name = {value}\n"))
    assert found.text.startswith("not a TOML file: ")


def test_lines_are_those_outside_of_multi_line_strings() -> None:
    text = 'about = """\n[...]\nname = 1\n"""\nlist = [\n  [ ],\n]\nname = "x"\n'
    assert line_of(text, ("name",)) == 8
    assert line_of("a = 'x\u2028y'\nb = 1\n", ("b",)) == 2


@pytest.mark.parametrize("name", sorted(packaged_scenarios()))
def test_packaged_scenarios_are_valid(name: str) -> None:
    assert validate(packaged_scenarios()[name]) == []


def test_what_is_no_toml_file_is_one_error(tmp_path: Path) -> None:
    assert validate(tmp_path / "none.toml") == [
        Finding(0, "cannot read: No such file or directory; expected a scenario")
    ]
    (found,) = validate(written(tmp_path, "name = \n"))
    assert found.text.startswith("not a TOML file: ")


def test_the_command_prints_lines_and_ends_with_2(tmp_path: Path) -> None:
    path = written(tmp_path, WRONG)
    done = CliRunner().invoke(command, [str(path)], standalone_mode=False)
    assert done.return_value == 2
    assert f"{path}:3: unknown key time_scal; nearest: time_scale" in done.output
    told = json.loads(CliRunner().invoke(command, [str(path), "--json"], standalone_mode=False).output)
    assert (told["valid"], [each["line"] for each in told["errors"]]) == (False, [1, 3, 14, 15])
    good = CliRunner().invoke(command, ["quickstart"], standalone_mode=False)
    assert good.return_value == 0
    assert good.output.endswith(": valid\n")


# --- lines

NAMES = st.sampled_from(["a", "b", "c-1", "d_2"])
VALUES: st.SearchStrategy[Any] = st.integers() | st.booleans() | st.just("x = 1 # no key")
TABLES = st.dictionaries(NAMES, VALUES, max_size=3)


@given(TABLES, st.dictionaries(NAMES, TABLES | st.lists(TABLES, min_size=1, max_size=3), max_size=3))
def test_lines_are_those_of_the_keys(top: dict[str, Any], tables: dict[str, Any]) -> None:
    lines, expected = [], {}

    def put(keys: dict[str, Any], *path: int | str) -> None:
        for name, value in keys.items():
            lines.append(f"{name} = {json.dumps(value)} # comment")
            expected[*path, name] = len(lines)

    put({f"top-{name}": value for name, value in top.items()})
    for name, content in tables.items():
        for index, each in enumerate(content if isinstance(content, list) else [content]):
            several = isinstance(content, list)
            lines.append(f"[[{name}]]" if several else f"[ {name} ] # comment")
            path = (name, index) if several else (name,)
            expected[path] = len(lines)
            put(each, *path)
    text = "\n".join(lines)
    tomllib.loads(text)
    for path, line in expected.items():
        assert line_of(text, path) == line
        assert line_of(text, (*path, "not there")) == line


def test_dotted_and_quoted_names() -> None:
    text = '"a b".c = 1\n[x."y z"]\nk.l = 2\n[[x.n]]\n[x.n.m]\nq = {r = 3}\n'
    assert line_of(text, ("a b", "c")) == 1
    assert line_of(text, ("x", "y z", "k", "l")) == 3
    assert line_of(text, ("x", "n", 0, "m", "q", "r")) == 6
    assert line_of(text, ("elsewhere",)) == 1
