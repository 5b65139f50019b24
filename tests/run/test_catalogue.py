"""The catalogue of runs: read from their directories, with tags and notes, differences, pruning and trends."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from support.compare.compared_runs import dry_run
from support.control.rehearsal import five_jobs
from support.live import HANG_S

from testbed.cli.runs import runs
from testbed.errors import UserError
from testbed.measure import provenance
from testbed.measure.provenance import digest_of, of_checkout, packages
from testbed.scheduling.workload.jobs import Job
from testbed.study.catalogue import DONE, FAILED, UNFINISHED, CataloguedRun, prunable, read_catalogue

DAY_NS = 86_400 * 10**9


def run_directory(
    folder: Path, name: str, *, day: int = 0, policy: str = "EASY", stretch: float | None = 2.0, failed: bool = False,
    **manifest: Any,
) -> Path:  # fmt: skip
    """Write the files of a run that the catalogue reads; without a stretch the run is unfinished."""
    path = folder / name
    path.mkdir(parents=True)
    about = {
        "scenario": {"name": "mine", "time_scale": 60.0, "nodes": [{"name": "a"}]}, "policy": policy,
        "clocks": {"anchor_unix_ns": day * DAY_NS}, "source": {"commit": "c0ffee" * 6, "dirty": False}, **manifest,
    }  # fmt: skip
    (path / "manifest.json").write_text(json.dumps(about))
    if stretch is not None:
        summary = {
            "complete": True, "jobs": 3, "failed": {"1": "gone"} if failed else {},
            "metrics": {"mean_stretch": {"value": stretch, "unit": "1"}, "penalty_mean": {"value": None, "unit": "s"}},
        }  # fmt: skip
        (path / "summary.json").write_text(json.dumps(summary))
    return path


def ask(folder: Path, *words: str, code: int | None = None) -> Any:
    """Return the JSON output of a command."""
    command, *rest = words
    done = CliRunner().invoke(runs, [command, "--runs", str(folder), *rest, "--json"], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    assert done.return_value == code
    return json.loads(done.output)


def change(folder: Path, *words: str) -> str:
    command, *rest = words
    done = CliRunner().invoke(runs, [command, "--runs", str(folder), *rest], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.output


def test_runs_are_listed_from_the_oldest_on_also_those_of_campaigns(tmp_path: Path) -> None:
    run_directory(tmp_path, "b", day=2, failed=True)
    run_directory(tmp_path / "campaign", "c", day=3, stretch=None)
    run_directory(tmp_path, "a", day=1)
    (tmp_path / "no-run").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "manifest.json").write_text("{")
    found = ask(tmp_path, "list")
    assert [(each["run"], each["state"]) for each in found] == [("a", DONE), ("b", FAILED), ("c", UNFINISHED)]
    assert found[0]["metrics"] == {"mean_stretch": 2.0}
    assert found[0]["commit"] == "c0ffee" * 6
    assert ask(tmp_path, "list", "--policy", "FCFS") == []
    with pytest.raises(UserError, match="no such folder"):
        ask(tmp_path / "nowhere", "list")


def test_tags_and_notes_stay_with_the_run(tmp_path: Path) -> None:
    path = run_directory(tmp_path, "2026-a")
    run_directory(tmp_path, "2026-b")
    assert change(tmp_path, "tag", "2026-a", "paper", "good") == "2026-a: tags good, paper\n"
    change(tmp_path, "note", "2026-a", "before [bold] the kernel")
    assert change(tmp_path, "tag", "2026-a", "good", "--remove") == "2026-a: tags paper\n"
    found = ask(tmp_path, "show", str(path))
    assert (found["tags"], found["note"]) == (["paper"], "before [bold] the kernel")
    assert [each["run"] for each in ask(tmp_path, "list", "--tag", "paper")] == ["2026-a"]
    assert "before [bold] the kernel" in change(tmp_path, "list")
    with pytest.raises(UserError, match="no tag 'none'; its tags: paper"):
        change(tmp_path, "tag", "2026-a", "none", "--remove")
    with pytest.raises(UserError, match="2 runs, such as 2026-a and 2026-b, of that name"):
        ask(tmp_path, "show", "2026")
    with pytest.raises(UserError, match="no run of that name"):
        ask(tmp_path, "show", "2027")


def test_differences_are_those_of_manifests_and_summaries(tmp_path: Path) -> None:
    run_directory(tmp_path, "a")
    run_directory(tmp_path, "b", stretch=3.0, versions={"numpy": "2"}, scenario={"name": "mine", "nodes": []})
    found = {each["key"]: (each["one"], each["other"]) for each in ask(tmp_path, "diff", "a", "b", code=1)}
    assert found == {
        "manifest: scenario.nodes": ("", "[]"),
        "manifest: scenario.nodes.0.name": ('"a"', ""),
        "manifest: scenario.time_scale": ("60.0", ""),
        "manifest: versions.numpy": ("", '"2"'),
        "summary: metrics.mean_stretch.value": ("2.0", "3.0"),
    }
    assert ask(tmp_path, "diff", "a", "a", code=0) == []


def test_pruning_lists_first_and_removes_with_yes(tmp_path: Path) -> None:
    for day in range(5):
        run_directory(tmp_path, f"r{day}", day=day)
    run_directory(tmp_path, "other", day=0, policy="FCFS")
    run_directory(tmp_path, "open", day=0, stretch=None)
    change(tmp_path, "tag", "r1", "paper")
    expected = {str(tmp_path / name) for name in ("r0", "r2")}
    listed = ask(tmp_path, "prune", "--keep", "2", "--older-than", "0")
    assert (listed["removed"], set(listed["runs"])) == (False, expected)
    assert all(Path(path).exists() for path in expected)
    assert set(ask(tmp_path, "prune", "--keep", "2", "--yes")["runs"]) == expected
    assert {each["run"] for each in ask(tmp_path, "list")} == {"r1", "r3", "r4", "other", "open"}
    with pytest.raises(UserError, match="which runs"):
        ask(tmp_path, "prune")


RUNS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from((DONE, FAILED, UNFINISHED)), st.booleans(), st.integers(0, 50)),
    max_size=12,
)


@given(RUNS, st.none() | st.integers(0, 3), st.none() | st.integers(0, 60), st.booleans())
def test_what_is_tagged_or_unfinished_or_among_the_newest_is_never_removed(
    rows: list, keep: int | None, older: int | None, failed: bool
) -> None:
    found = [
        CataloguedRun(Path(f"r{n}"), "s", policy, state, float(day) * 86400, 1, "", {}, ("t",) if tagged else (), "")
        for n, (policy, state, tagged, day) in enumerate(sorted(rows, key=lambda row: row[3]))
    ]
    removed = prunable(found, now_unix_s=50.0 * 86400, keep=keep, older_than_days=older, failed=failed)
    for run in removed:
        assert run.state != UNFINISHED
        assert not run.tags
        assert not failed or run.state == FAILED
        kind = FAILED if failed else DONE
        newer = [each for each in found[found.index(run) + 1 :] if each.policy == run.policy and each.state == kind]
        assert keep is None or run.state != kind or len(newer) >= keep
        assert run.begun_unix_s is not None
        assert older is None or 50 - run.begun_unix_s / 86400 > older


def test_a_trend_has_changes_by_policy(tmp_path: Path) -> None:
    for day, (policy, stretch) in enumerate([("EASY", 2.0), ("FCFS", 9.0), ("EASY", 3.0)]):
        run_directory(tmp_path, f"r{day}", day=day, policy=policy, stretch=stretch)
    run_directory(tmp_path, "bad", day=9, failed=True)
    rows = ask(tmp_path, "trend", "--scenario", "mine")
    assert [(row["policy"], row["mean_stretch"]) for row in rows] == [("EASY", 2.0), ("FCFS", 9.0), ("EASY", 3.0)]
    text = change(tmp_path, "trend", "--scenario", "mine", "--policy", "EASY")
    assert "+50.0%" in text
    assert "c0ffeec0ff" in text
    with pytest.raises(UserError, match="nearest: mean_stretch"):
        ask(tmp_path, "trend", "--scenario", "mine", "--metric", "mean_strech")
    with pytest.raises(UserError, match="no complete run"):
        ask(tmp_path, "trend", "--scenario", "other")


# --- the code that made a run


def test_the_commit_of_a_checkout_and_whether_it_was_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "_GIT_WITHIN_S", HANG_S)
    assert of_checkout(tmp_path) == {"commit": None, "dirty": None}

    def git(*words: str) -> str:
        author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        return subprocess.run(
            ["git", "-C", str(tmp_path), *author, *words], check=True, capture_output=True, text=True
        ).stdout

    git("init", "-q")
    (tmp_path / "testbed").mkdir()
    (tmp_path / "testbed" / "f.py").write_text("1")
    git("add", ".")
    git("commit", "-qm", "one")
    commit = git("rev-parse", "HEAD").strip()
    assert of_checkout(tmp_path) == {"commit": commit, "dirty": False}
    (tmp_path / "notes").write_text("1")
    assert of_checkout(tmp_path)["dirty"] is False, "it is no code"
    (tmp_path / "testbed" / "new.py").write_text("1")
    assert of_checkout(tmp_path)["dirty"] is True, "an untracked module is imported as well"
    (tmp_path / "testbed" / "new.py").unlink()
    (tmp_path / "testbed" / "f.py").write_text("2")
    assert of_checkout(tmp_path) == {"commit": commit, "dirty": True}
    monkeypatch.setattr(provenance, "_GIT_WITHIN_S", 0.0)
    assert of_checkout(tmp_path) == {"commit": None, "dirty": None}, "git took too long"


def test_a_real_run_tells_its_code_its_trace_and_its_packages(tmp_path: Path) -> None:
    path = dry_run(tmp_path / "run")
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["trace_sha256"] == digest_of(five_jobs())
    assert manifest["source"] == provenance.source()
    assert manifest["versions"]["numpy"] == version("numpy")
    (run,) = read_catalogue(tmp_path / "run")
    assert (run.state, run.damage, run.jobs) == (DONE, "", 5)
    assert run.begun_unix_s is not None
    assert run.metrics["mean_stretch"] >= 1.0


def test_a_wheel_knows_the_commit_of_its_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "files", lambda _name: tmp_path)
    (tmp_path / "commit").write_text("abc123 dirty\n")
    assert provenance.source.__wrapped__() == {"commit": "abc123", "dirty": True}


def test_all_packages_are_named_and_segments_have_digests() -> None:
    assert {"numpy", "dfrs-testbed"} <= packages().keys()
    one = [Job(1, 0.0, 1, 0.5, 0.1, 60.0)]
    assert digest_of(one) == digest_of(list(one))
    assert digest_of(one) != digest_of([Job(1, 0.0, 1, 0.5, 0.1, 61.0)])
    assert len(digest_of(one)) == 64


def test_the_catalogue_of_nothing_is_empty(tmp_path: Path) -> None:
    assert read_catalogue(tmp_path) == []


# --- what must never be removed, and damaged files


HOLDS = """
import sys
from pathlib import Path
from testbed.measure.run_lock import RunLock
lock = RunLock(Path(sys.argv[1]))
print("held", flush=True)
input()
"""


def prune(folder: Path, *words: str) -> set[str]:
    return {Path(path).name for path in ask(folder, "prune", *words, "--yes")["runs"]}


def test_a_symbolic_link_is_no_second_run(tmp_path: Path) -> None:
    run_directory(tmp_path, "a", day=1)
    run_directory(tmp_path, "b", day=2)
    (tmp_path / "latest").symlink_to("b")
    assert [each["run"] for each in ask(tmp_path, "list")] == ["a", "b"]
    assert prune(tmp_path, "--keep", "1") == {"a"}
    assert (tmp_path / "latest" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("notes.json", "{"),
        ("notes.json", '{"tags": null}'),
        ("summary.json", "[1]"),
        ("manifest.json", '{"scenario": {"name": "mine"}, "clocks": {"anchor_unix_ns": null}}'),
    ],
)
def test_a_damaged_run_is_listed_with_its_damage_and_stays(tmp_path: Path, name: str, text: str) -> None:
    path = run_directory(tmp_path, "a", day=1)
    run_directory(tmp_path, "b", day=1)
    (path / name).write_text(text)
    (damage,) = [each["damage"] for each in ask(tmp_path, "list") if each["run"] == "a"]
    assert name in damage
    assert prune(tmp_path, "--older-than", "30") == {"b"}
    if name == "notes.json":
        with pytest.raises(UserError, match=r"notes\.json: cannot be read"):
            change(tmp_path, "tag", "a", "good")
        assert (path / name).read_text() == text


def test_a_run_with_a_controller_is_not_removed_and_others_are(tmp_path: Path) -> None:
    path, other = run_directory(tmp_path, "a"), run_directory(tmp_path, "b", day=1)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as holder:  # fmt: skip
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        words = ["prune", "--runs", str(tmp_path), "--keep", "0", "--yes", "--json"]
        done = CliRunner().invoke(runs, words, standalone_mode=False)
        assert "drives this run" in str(done.exception)
        told = json.loads(done.output)
        assert (told["runs"], len(told["failures"])) == ([str(other)], 1)
        holder.communicate(b"\n")
    assert (path / "summary.json").exists()
    assert not other.exists()
    assert prune(tmp_path, "--keep", "0") == {"a"}
    assert not path.exists()


def test_a_removal_that_was_interrupted_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run_directory(tmp_path, "a")
    (path / "zz").mkdir()

    def fails(folder: Path) -> None:
        raise OSError(5, f"Input/output error: {folder}")

    with monkeypatch.context() as patch:
        patch.setattr("testbed.study.catalogue.shutil.rmtree", fails)
        with pytest.raises(UserError, match="cannot remove"):
            prune(tmp_path, "--keep", "0")
    assert [each["run"] for each in ask(tmp_path, "list")] == ["a"]
    assert prune(tmp_path, "--keep", "0") == {"a"}
    assert not path.exists()


def test_a_job_that_its_user_deleted_is_no_failure(tmp_path: Path) -> None:
    path = run_directory(tmp_path, "served", failed=True)
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps({**summary, "failure_codes": {"1": "deleted"}}))
    assert [each["state"] for each in ask(tmp_path, "list")] == [DONE]


def test_failed_runs_do_not_count_as_kept(tmp_path: Path) -> None:
    run_directory(tmp_path, "good", day=1)
    run_directory(tmp_path, "bad", day=2, failed=True)
    assert prune(tmp_path, "--keep", "1") == {"bad"}


def test_names_and_clocks_of_runs_are_no_difference(tmp_path: Path) -> None:
    run_directory(tmp_path, "a", day=1, run="a", run_tag="1a")
    run_directory(tmp_path, "b", day=2, run="b", run_tag="2b")
    assert ask(tmp_path, "diff", "a", "b", code=0) == []
