"""The long lane: blocks run in fresh clones, record the code that they ran, and continue after interruptions."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import psutil
import pytest
from support.live import HANG_S, wait_until

ROOT = Path(__file__).parents[2]
BLOCKS = """
[[block]]
name = "numbers"
about = "two steps"
minutes = 1
prepare = "echo prepared > prepared"
cleanup = "echo cleaned"
[[block.step]]
name = "one"
command = "cat prepared && echo once >> {runs} && echo kept > kept.txt"
keep = ["*.txt"]
[[block.step]]
name = "two"
command = "test -e {fixed}"
[[block]]
name = "commits"
about = "the results of another step are committed meanwhile"
minutes = 1
[[block.step]]
name = "commit"
command = "git -C {tree} -c user.name=t -c user.email=t@example.org commit --quiet --allow-empty -m results"
[[block]]
name = "waits"
about = "goes on until it is told to end"
minutes = 1
[[block.step]]
name = "wait"
command = "exec python3 {program}"
busy = 1
"""

RESUMING = """
[[block]]
name = "counts"
about = "it goes on where it was ended"
minutes = 1
[[block.step]]
name = "count"
command = '''
echo more >> lines.txt
if [ $(wc -l < lines.txt) = 2 ]; then exec python3 {program}; fi
[ $(wc -l < lines.txt) = 3 ]
'''
keep = ["*.txt"]
resumes = true
"""

PROGRAM = """
import pathlib, signal
try:
    pathlib.Path({waiting!r}).touch()
    signal.pause()
finally:
    pathlib.Path({cleaned!r}).touch()
"""


class Lane:
    """A repository with the long lane and blocks of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "tree"
        self.runs, self.fixed, self.waiting = folder / "runs", folder / "fixed", folder / "waiting"
        self.cleaned = folder / "cleaned"
        (self.folder / ".ci").mkdir(parents=True)
        shutil.copy(ROOT / ".ci/long", self.folder / ".ci/long")
        blocks = BLOCKS.format(tree=self.folder, runs=self.runs, fixed=self.fixed, program=folder / "program.py")
        (folder / "program.py").write_text(PROGRAM.format(waiting=str(self.waiting), cleaned=str(self.cleaned)))
        (self.folder / ".ci/blocks.toml").write_text(blocks)
        self.git("init", "--quiet", "--initial-branch", "main")
        self.commit()

    def git(self, *words: str) -> str:
        name = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        done = subprocess.run(["git", *name, *words], cwd=self.folder, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(self) -> str:
        self.git("add", "-A")
        self.git("commit", "--quiet", "-m", "more")
        return self.git("rev-parse", "HEAD")

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, ".ci/long", *words]
        return subprocess.run(argv, cwd=self.folder, capture_output=True, text=True, check=False, timeout=HANG_S)

    def results(self, block: str = "numbers") -> dict[str, object]:
        return json.loads((self.folder / f"docs/results/lanes/{block}.json").read_text())


@pytest.fixture
def lane(tmp_path: Path) -> Lane:
    return Lane(tmp_path)


def test_a_block_goes_on_at_the_step_that_has_not_passed_on_this_code(lane: Lane) -> None:
    first = lane.git("rev-parse", "HEAD")
    failed = lane.run("numbers")
    assert failed.returncode == 1, failed.stderr
    steps = lane.results()["steps"]
    assert (steps["one"]["exit_code"], steps["two"]["exit_code"]) == (0, 1)
    assert steps["one"]["commit"] == first
    assert steps["one"]["output_end"] == ["prepared", "cleaned"]
    lanes = lane.folder / "docs/results/lanes"
    assert gzip.decompress((lanes / "numbers.one.log.gz").read_bytes()) == b"prepared\ncleaned\n"
    with tarfile.open(lanes / "numbers.one.tar.xz") as kept:
        assert kept.getnames() == ["kept.txt"]
    assert "| numbers | two | FAILED (1) |" in (lane.folder / "docs/results/lanes.md").read_text()

    code = lane.results()["steps"]["one"]["code"]
    lane.commit()  # a commit of results only: the code is the same
    lane.fixed.touch()
    passed = lane.run("numbers")
    assert passed.returncode == 0, passed.stdout + passed.stderr
    assert "one: passed before on this code" in passed.stdout
    assert lane.runs.read_text() == "once\n"
    assert lane.results()["steps"]["one"]["code"] == code
    status = {(row["block"], row["step"]): row for row in json.loads(lane.run("--status", "--json").stdout)}
    assert (status["numbers", "two"]["result"], status["numbers", "two"]["this_code"]) == ("passed", "yes")
    assert status["waits", "wait"]["result"] == "never run"

    blocks = lane.folder / ".ci/blocks.toml"
    blocks.write_text(blocks.read_text().replace("goes on until", "waits until"))  # another block
    for name in ("docs/page.md", "tests/test_it.py"):  # this block runs no tests
        (lane.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (lane.folder / name).write_text("pass\n")
    lane.commit()
    assert json.loads(lane.run("--status", "--json").stdout)[0]["this_code"] == "yes"
    unchanged = blocks.read_text()
    blocks.write_text(unchanged.replace("cat prepared", "cat < prepared"))
    lane.commit()
    states = [row["this_code"] for row in json.loads(lane.run("--status", "--json").stdout)]
    assert states[:2] == ["no", "yes"], "the command of the first step is another one"
    blocks.write_text(unchanged)
    (lane.folder / "code.py").write_text("pass\n")
    lane.commit()
    assert json.loads(lane.run("--status", "--json").stdout)[0]["this_code"] == "no"
    assert lane.run("numbers").returncode == 0
    assert lane.runs.read_text() == "once\nonce\n"
    assert code not in {step["code"] for step in lane.results()["steps"].values()}


def test_a_result_names_the_commit_that_was_cloned(lane: Lane) -> None:
    first = lane.git("rev-parse", "HEAD")
    assert lane.run("commits").returncode == 0
    assert lane.results("commits")["steps"]["commit"]["commit"] == first != lane.git("rev-parse", "HEAD")


def test_again_runs_what_has_passed(lane: Lane) -> None:
    lane.fixed.touch()
    for words in (("numbers",), ("numbers", "--again")):
        assert lane.run(*words).returncode == 0
    assert lane.runs.read_text() == "once\nonce\n"


def test_code_that_is_not_committed_is_refused(lane: Lane) -> None:
    (lane.folder / "code.py").write_text("pass\n")
    refused = lane.run("numbers")
    assert refused.returncode == 2
    assert refused.stderr == (
        ".ci/long: code.py: not committed; a result names the commit it was made with, so commit first\n"
    )
    assert not lane.runs.exists()


def test_an_unknown_block_is_refused(lane: Lane) -> None:
    refused = lane.run("number")
    assert refused.returncode == 2
    assert refused.stderr == ".ci/long: block 'number': expected one of numbers, commits, waits\n"
    refused = lane.run("numbers.three")
    assert (refused.returncode, refused.stderr) == (
        2, ".ci/long: step 'three' of block numbers: expected one of one, two\n"
    )  # fmt: skip
    assert not lane.runs.exists()


def test_one_step_of_a_block_can_be_run(lane: Lane) -> None:
    lane.fixed.touch()
    assert lane.run("numbers.two").returncode == 0
    assert set(lane.results()["steps"]) == {"two"}
    passed = lane.run("numbers")
    assert passed.returncode == 0
    assert "two: passed before on this code" in passed.stdout
    assert set(lane.results()["steps"]) == {"one", "two"}


@pytest.mark.parametrize(
    ("how", "begun_by"),
    [
        (signal.SIGINT, []),
        (signal.SIGTERM, []),
        (signal.SIGTERM, ["env", "--ignore-signal=INT"]),  # as a script begins `.ci/long waits &`
    ],
)
def test_an_interrupted_step_is_ended_and_leaves_no_result(
    lane: Lane, how: signal.Signals, begun_by: list[str], tmp_path: Path
) -> None:
    place = tmp_path / "clones"
    place.mkdir()
    argv = [*begun_by, sys.executable, ".ci/long", "waits"]
    environment = {**os.environ, "TMPDIR": str(place)}
    with subprocess.Popen(argv, cwd=lane.folder, env=environment, stderr=subprocess.PIPE, text=True) as child:
        wait_until(lane.waiting.exists, "the step begins")
        below = psutil.Process(child.pid).children(recursive=True)
        assert len(below) == 2  # the step and its busy loop
        child.send_signal(how)
        _, said = child.communicate(timeout=HANG_S)
    assert child.returncode == 130
    assert lane.cleaned.exists()
    assert said == ".ci/long: interrupted; run it again to go on\n"
    assert not any(process.is_running() for process in below)
    assert list(place.iterdir()) == []
    assert not (lane.folder / "docs/results/lanes/waits.json").exists()


def test_a_step_that_resumes_goes_on_with_what_it_had_kept_on_this_code(lane: Lane) -> None:
    blocks = lane.folder / ".ci/blocks.toml"
    blocks.write_text(blocks.read_text() + RESUMING.format(program=lane.folder.parent / "program.py"))
    lane.commit()
    lanes = lane.folder / "docs/results/lanes"
    assert lane.run("counts").returncode == 1, "the first call failed with one line"
    (kept_file,) = lanes.glob("*.unfinished.tar.xz")
    kept_file.write_bytes(kept_file.read_bytes()[:40])
    again = lane.run("counts")
    assert again.returncode == 1
    assert "it is put aside, and the step begins anew" in again.stderr
    argv = [sys.executable, ".ci/long", "counts"]
    with subprocess.Popen(argv, cwd=lane.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        wait_until(lane.waiting.exists, "the step has its second line")
        child.send_signal(signal.SIGTERM)
        assert child.wait(HANG_S) == 130
    assert len(list(lanes.glob("*.unfinished.tar.xz"))) == 1
    (lane.folder / "code.py").write_text("pass\n")
    lane.commit()
    assert lane.run("counts").returncode == 1, "other code begins anew"
    (lane.folder / "code.py").unlink()
    lane.commit()
    assert lane.run("counts").returncode == 0, "the third line is enough"
    with tarfile.open(lanes / "counts.count.tar.xz") as kept:
        text = kept.extractfile("lines.txt")
        assert text is not None
        assert text.read().decode() == "more\n" * 3
    assert list(lanes.glob("*.unfinished.tar.xz")) == []


def test_the_blocks_of_this_project_can_be_read() -> None:
    done = subprocess.run([ROOT / ".ci/long", "--list", "--json"], check=True, capture_output=True, text=True)
    names = [block["block"] for block in json.loads(done.stdout)]
    assert {"ci", "ordinary-user", "pages", "xen"} <= set(names)
    assert len(names) == len(set(names))
