"""Questions about the printed tables: their patches fit the code, their campaigns load, and answers are compared."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from testbed.errors import UserError
from testbed.scheduling.campaign.file import load_campaign

ROOT = Path(__file__).resolve().parents[2]
Results = Callable[[Path, object, Path], list[dict[str, str]]]
NAMES = sorted(path.stem for path in (ROOT / "benchmarks/printed/questions").glob("*.toml"))


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    spec = importlib.util.spec_from_file_location("questions", ROOT / "benchmarks/questions.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "questions", module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def simulate_by(results: Results, questions: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let questions take the results of campaigns from a function of the copy of the code, and make no copies."""
    monkeypatch.setattr(questions, "copy_of", lambda _commit, _patch, folder: folder)
    monkeypatch.setattr(questions, "simulate", results)


@pytest.mark.parametrize("name", NAMES)
def test_a_patch_fits_the_code_and_campaigns_load(questions: ModuleType, name: str, tmp_path: Path) -> None:
    question = questions.read_question(questions.QUESTIONS / f"{name}.toml")
    assert question.asks.strip().endswith("?")
    assert question.patch or question.factor != 1.0 or question.loads, "a question changes something"
    if question.patch:
        done = subprocess.run(
            ["git", "apply", "--check", "-"],
            cwd=ROOT,
            input=question.patch,
            text=True,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    for campaign in question.campaigns:
        file = tmp_path / "part.toml"
        file.write_text(campaign.text())
        loaded = load_campaign(file)
        assert [source.name for source in loaded.traces] == [campaign.traces]
        assert len(loaded.policies) == len(campaign.policies)


def test_values_with_and_without_the_change_stand_side_by_side(
    questions: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def results(tree: Path, _campaign: object, _folder: Path) -> list[dict[str, str]]:
        degradation = 100.0 if tree.name == "as-it-is" else 105.0
        row = {"traces": "hpc2n", "seed": "", "load": "", "policy": "/stretch-per/OPT=MAX/MINVT=600"}
        return [
            row | {"week": str(week), "degradation_fluid": str(degradation + week - 2), "degradation_theorem1": "1"}
            for week in (1, 2, 3)
        ]

    simulate_by(results, questions, monkeypatch)
    question = questions.read_question(questions.QUESTIONS / "stretch-search.toml")
    question = questions.Question(
        question.name, question.asks, question.expects, question.patch, 1.0, (), question.campaigns[:1]
    )
    rows = list(questions.answered(question, "commit", tmp_path))
    means = [row for row in rows if row["statistic"] == "mean" and row["table"] == "2"]
    assert [(row["printed"], row["ours"], row["with"]) for row in means] == [(105.0, 100.0, 105.0)]
    assert [(row["agrees"], row["with_agrees"]) for row in means] == [(False, True)]
    page = questions.page([question], rows)
    begin = "| 2 | real-world | /stretch-per/OPT=MAX/MINVT=600 | degradation, mean | 105 | "
    (line,) = (line for line in page.splitlines() if line.startswith(begin))
    assert line == f"{begin}{means[0]['ours_of']} | 100 | 105 agrees |"


def test_a_change_that_multiplies_needs_no_second_campaign(
    questions: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def results(tree: Path, _campaign: object, _folder: Path) -> list[dict[str, str]]:
        asked.append(tree.name)
        row = {"traces": "scaled", "week": "", "load": "0.9", "policy": "/per/OPT=MIN"}
        return [
            row | {"seed": str(seed), "preemption_gb_per_s": str(0.96 + seed / 100), "migration_gb_per_s": "0.4"}
            for seed in (1, 2, 3)
        ]

    simulate_by(results, questions, monkeypatch)
    question = questions.read_question(questions.QUESTIONS / "bytes-once.toml")
    rows = [
        row for row in questions.answered(question, "commit", tmp_path)
        if (row["table"], row["measure"], row["statistic"]) == ("3", "preemption_gb_per_s", "mean")
    ]  # fmt: skip
    assert asked == ["as-it-is"]
    assert [row["with"] for row in rows] == [pytest.approx(row["ours"] / 2) for row in rows]
    assert [row["with_agrees"] for row in rows] == [True]
    assert [row["agrees"] for row in rows] == [False]


def test_a_question_about_loads_takes_the_traces_of_some(
    questions: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def results(_tree: Path, _campaign: object, _folder: Path) -> list[dict[str, str]]:
        row = {"traces": "scaled", "week": "", "policy": "/per/OPT=MIN"}
        return [
            row | {"seed": str(seed), "load": str(load), "preemptions_per_hour": str(100 * load)}
            for seed in (1, 2, 3) for load in (0.7, 0.8, 0.9)
        ]  # fmt: skip

    simulate_by(results, questions, monkeypatch)
    question = questions.read_question(questions.QUESTIONS / "above-0-7.toml")
    means = [
        row for row in questions.answered(question, "commit", tmp_path)
        if (row["table"], row["measure"], row["statistic"]) == ("3", "preemptions_per_hour", "mean")
    ]  # fmt: skip
    assert [(row["ours"], row["with"]) for row in means] == [(pytest.approx(80.0), pytest.approx(85.0))]


def test_a_command_that_fails_is_told_with_its_last_words(questions: ModuleType, tmp_path: Path) -> None:
    words: Sequence[str] = ("git", "apply", "-")
    with pytest.raises(UserError, match=r"git apply -: exit code \d+: .*patch"):
        questions.run(*words, cwd=tmp_path, given="no patch\n")
