"""The wheel of this checkout in a separate virtual environment, and the commands of every page with it.

Commands run in an unpacked source distribution, as in a clone. Those that need minutes, or more than this machine, run
with --long: the environment variable DFRS_PAGES names their kinds (`support.docs.pages.KINDS`), by default `long`.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass, field
from email.parser import Parser
from pathlib import Path

import pytest
from support.ansible.hosts import make_wheels, why_not
from support.archives import unpack
from support.docs.blocks import PAGES, ROOT
from support.docs.machines import FILLED, machines, make_home
from support.docs.pages import KINDS, MARKS, Block, all_blocks, script_of
from support.live import HANG_S
from support.report.rehearsed_run import rehearse
from support.short_run import write_short_run
from support.workload.site_jobs import SACCT_SAMPLE

pytestmark = pytest.mark.slow
EXTRAS = "campaign,check,dashboard,influx,query,report,secure,simulate"  # without those that need libvirt's headers
CONSTRAINTS = ROOT / "tests" / "constraints.txt"
LANE = tuple(os.environ.get("DFRS_PAGES", "long").split())
MOST_S = 12 * 3600.0  # for a page with live campaigns; the lane's own limit is shorter
RUN = "2026-11-21T10-29-37-quickstart"  # the run of docs/queries.md


@dataclass(slots=True)
class Installed:
    """The wheel in a virtual environment, a clone and an empty folder, and the run that each folder has when needed."""

    wheel: Path
    sdist: Path
    venv: Path
    folders: dict[str, Path]
    runs: dict[str, Path] = field(default_factory=dict)

    def shell(self, command: str, folder: str, within_s: float = HANG_S) -> subprocess.CompletedProcess[str]:
        return shell(command, self.folders[folder], self.venv, within_s)

    def check(self, command: str, folder: str, says: str) -> None:
        done = self.shell(command, folder)
        told = f"{command}: exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        assert done.returncode == 0, told
        assert says in done.stdout + done.stderr, told

    def run(self, folder: str) -> Path:
        """Return the directory of a short run, which is made at the first call."""
        if folder not in self.runs:
            done = self.shell("testbed run short.toml --out runs", folder)
            assert done.returncode == 0, done.stdout + done.stderr
            (found,) = (self.folders[folder] / "runs").glob("*-short")
            self.runs[folder] = found.relative_to(self.folders[folder])
        return self.runs[folder]


def shell(command: str, folder: Path, venv: Path | None, within_s: float) -> subprocess.CompletedProcess[str]:
    """Run a command as a user's shell does: only the active environment determines the path of modules."""
    ours = ("PYTHON", "VIRTUAL_ENV", "TESTBED_", "DFRS_TEST_WHEEL")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    path = [each for each in environment["PATH"].split(os.pathsep) if each != str(Path(sys.executable).parent)]
    if venv is not None:
        environment["VIRTUAL_ENV"] = str(venv)
        path.insert(0, str(venv / "bin"))
    environment |= {"PATH": os.pathsep.join(path), "PIP_CONSTRAINT": str(CONSTRAINTS)}
    argv = ["timeout", "--kill-after=60", str(within_s), "bash", "-ec", command]
    with subprocess.Popen(
        argv, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    ) as child:  # fmt: skip
        try:
            told, complaints = child.communicate()
        except BaseException:
            child.terminate()  # `timeout` sends it on to all of its processes, which are in a group of their own
            raise
    return subprocess.CompletedProcess(argv, child.returncode, told, complaints)


def build(folder: Path, into: Path) -> None:
    subprocess.run(
        [sys.executable, "-P", "-m", "hatchling", "build", "--directory", into], cwd=folder, check=True,
        capture_output=True, timeout=HANG_S,
    )  # fmt: skip


def unpacked(sdist: Path, into: Path) -> Path:
    unpack(sdist, into)
    (found,) = into.iterdir()
    return found


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    base = tmp_path_factory.mktemp("wheel")
    build(ROOT, base / "dist")
    (wheel,), (sdist,) = (base / "dist").glob("*.whl"), (base / "dist").glob("*.tar.gz")
    folders = {"clone": unpacked(sdist, base / "clone"), "empty": base / "empty"}
    folders["empty"].mkdir()
    for folder in folders.values():
        write_short_run(folder)
    venv = base / "venv"
    made = shell(f"python3 -m venv {venv} && {venv}/bin/pip install --quiet '{wheel}[{EXTRAS}]'", base, None, 1200)
    assert made.returncode == 0, made.stdout + made.stderr
    return Installed(wheel, sdist, venv, folders)


def test_the_wheel_holds_the_files_of_the_checkout_and_no_others(installed: Installed) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "testbed", "node_agent", "scenarios"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    expected = {
        f"testbed/{name}" if name.startswith("scenarios/") else name for name in listed if (ROOT / name).exists()
    }
    with zipfile.ZipFile(installed.wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        built = archive.read("testbed/commit").decode().split()
    assert held == {*expected, "testbed/commit"}
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert built[0] == head.strip()


def test_the_wheel_of_the_source_distribution_is_the_same(installed: Installed, tmp_path: Path) -> None:
    source = unpacked(installed.sdist, tmp_path / "source")
    build(source, tmp_path / "dist")
    (again,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(installed.wheel) as one, zipfile.ZipFile(again) as other:
        assert files_of(one) == files_of(other)


def files_of(archive: zipfile.ZipFile) -> dict[str, list[bytes]]:
    """Return the lines of all files; the record of the files is in any order."""
    found = {name: archive.read(name).splitlines(keepends=True) for name in archive.namelist()}
    return {name: sorted(lines) if name.endswith("/RECORD") else lines for name, lines in found.items()}


def test_the_readme_names_the_extras_of_the_wheel(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        about = Parser().parsestr(archive.read(name).decode())
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.partition("| extra | adds |")[2].partition("\n\n")[0]
    named = {
        extra
        for row in table.splitlines()
        for extra in re.findall(r"`([a-z]+)`", row.partition("| ")[2].partition("|")[0])
    }
    assert named == set(about.get_all("Provides-Extra", [])) - {"docs", "test"}


def test_what_runs_in_the_clone_is_what_is_installed(installed: Installed) -> None:
    code = "from testbed.cli.main import main; import testbed, node_agent; print(testbed.__file__, node_agent.__file__)"
    (installed.venv / "bin" / "ask").write_text(code)
    said = installed.shell(f"python {installed.venv}/bin/ask", "clone").stdout.split()
    assert len(said) == 2
    assert all(path.startswith(str(installed.venv)) for path in said)
    assert "site-packages" in installed.shell("head -1 $(command -v testbed); pip show -f dfrs-testbed", "clone").stdout


def test_the_help_is_quick(installed: Installed) -> None:
    """Less than 0.3 s of CPU time in the best of five runs, so that a busy machine does not matter."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert installed.shell("testbed --help", "empty").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 0.3


@pytest.mark.parametrize("folder", ["clone", "empty"])
def test_packaged_files_are_found(installed: Installed, folder: str) -> None:
    for command, word in {
        "testbed run --list": "quickstart",
        "testbed campaign --list": "your-hardware",
        "testbed run quickstart --dry-run": "12 jobs",
        "testbed check --list quickstart": "test_memory.py::",
        "testbed calibrate quickstart --quick --dry-run": "trials, about",
    }.items():
        installed.check(command, folder, word)


DRIVER_TEST = """
from node_agent.drivers.null import NullDriver
from testbed.lab.virtual_time import run_in_virtual_time
from testbed.testing import DriverConformance

class TestOwn(DriverConformance):
    leaves = False

    def make(self):
        return NullDriver("live")

    def run(self, main):
        run_in_virtual_time(main)

class TestBroken(TestOwn):
    lacks = frozenset({"live"})
"""


def test_authors_of_drivers_inherit_the_suite_from_the_wheel(installed: Installed) -> None:
    """Outside of our project, failed assertions show their values, as in test modules."""
    (installed.folders["empty"] / "test_own.py").write_text(DRIVER_TEST)
    done = installed.shell("python -m pytest -q -p no:cacheprovider test_own.py::TestOwn", "empty")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^[2-9]\d passed, 3 skipped in", done.stdout, re.MULTILINE), done.stdout  # those of shares
    done = installed.shell("python -m pytest -q -p no:cacheprovider test_own.py::TestBroken", "empty")
    assert done.returncode == 1
    assert re.search(r"^1 failed, [2-9]\d passed, 3 skipped in", done.stdout, re.MULTILINE), done.stdout
    assert "assert set() == frozenset({'live'})" in done.stdout
    done = installed.shell(
        "python -c \"import sys; sys.modules['pytest'] = None; import testbed.testing as t; t.DriverConformance\"",
        "empty",
    )
    assert "ImportError: testbed.testing.DriverConformance needs pytest: expected pip install" in done.stderr


def test_a_short_run(installed: Installed) -> None:
    assert {folder: len(installed.run(folder).parts) for folder in ("clone", "empty")} == {"clone": 2, "empty": 2}


def page_folder(page: Path, installed: Installed, tmp_path: Path) -> Path:
    """Return a clone for the commands of a page, with programs that this machine may lack: sudo for root, and sacct."""
    folder = tmp_path / "clone"
    shutil.copytree(unpacked(installed.sdist, tmp_path / "sdist"), folder)
    programs = tmp_path / "programs"
    programs.mkdir()
    (tmp_path / "accounting").write_text(SACCT_SAMPLE)
    stand_ins = {"sacct": f"cat {shlex.quote(str(tmp_path / 'accounting'))}"}
    if "machines" in LANE:  # OpenSSH takes the home folder from the system, not from $HOME
        own = '-o UserKnownHostsFile="$HOME/.ssh/known_hosts" -i "$HOME/.ssh/id_ed25519"'
        stand_ins["ssh"] = f'exec {shutil.which("ssh")} {own} "$@"'
    if shutil.which("sudo") is None and os.geteuid() == 0:
        stand_ins["sudo"] = 'exec "$@"'
    if "containers" in LANE and (compose := shutil.which("docker-compose")):  # Debian 12 has version 1, without --wait
        stand_ins["docker"] = (
            f'if [ "$1" != compose ]; then exec {shutil.which("docker")} "$@"; fi\nshift\n'
            f'case "$*" in *--wait) set -- "${{@:1:$#-1}}";; esac\nexec {compose} "$@"'
        )
    for name, text in stand_ins.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    return folder


def execute(page: Path, kinds: tuple[str, ...], installed: Installed, folder: Path, within_s: float) -> None:
    path = shlex.quote(str(folder.parent / "programs"))
    home = folder.parent / "home"
    begin = f"PATH={path}:$PATH\n" + (f"export HOME={shlex.quote(str(home))}\n" if home.exists() else "")
    script = script_of(page, kinds, FILLED if "machines" in kinds else None)
    done = shell(begin + script, folder, installed.venv, within_s)
    if transcripts := os.environ.get("DFRS_PAGES_TRANSCRIPTS"):
        Path(transcripts).mkdir(parents=True, exist_ok=True)
        (Path(transcripts) / f"{page.stem}.txt").write_text(done.stdout)
    told = f"{page.name}: exit code {done.returncode}\n{done.stdout[-5000:]}\n{done.stderr[-5000:]}"
    assert done.returncode == 0, told
    assert "Traceback" not in done.stdout + done.stderr, told


LENGTHY = ("look-at-runs.md", "own-policy.md")  # half a minute to a minute each: they run in the lane of long commands


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.long] * (page.name in LENGTHY), id=page.name)
        for page in PAGES
        if script_of(page, ()) and (page.name not in LENGTHY or "long" in LANE)
    ],
)
def test_the_quick_commands_of_a_page_work(page: Path, installed: Installed, tmp_path: Path) -> None:
    folder = page_folder(page, installed, tmp_path)
    (folder / "runs").mkdir()
    rehearse(folder / "runs" / RUN)
    execute(page, (), installed, folder, HANG_S)


@pytest.mark.long
@pytest.mark.parametrize("page", [page for page in PAGES if script_of(page, LANE)], ids=lambda page: page.name)
def test_the_other_commands_of_a_page_work(page: Path, installed: Installed, tmp_path: Path) -> None:
    folder = page_folder(page, installed, tmp_path)
    if "log" in LANE:
        log = "HPC2N-2002-2.2-cln.swf.gz"
        (folder / log).symlink_to(Path(os.environ["TESTBED_TRACES"]) / log)
    with contextlib.ExitStack() as stack:
        if "machines" in LANE:
            assert not why_not(), why_not()
            (tmp_path / "wheels").mkdir()
            make_wheels(tmp_path / "wheels")
            make_home(tmp_path, stack.enter_context(machines(tmp_path, tmp_path / "wheels")))
        execute(page, LANE, installed, folder, MOST_S)


def test_the_lane_names_kinds_of_blocks() -> None:
    assert set(LANE) <= KINDS.keys()


@pytest.mark.parametrize("block", all_blocks(), ids=lambda block: f"{block.page}: {block.text.splitlines()[0][:50]}")
def test_the_comments_of_a_block_are_known(block: Block) -> None:
    assert set(block.marks) <= MARKS
    assert block.kind in {"", *KINDS}
    assert not {"background", "stays", "until"} & set(block.marks) or {"started", "stays", "until"} & set(block.marks)
    if "file" in block.marks:
        (page,) = (page for page in PAGES if page.name == block.page)
        text = page.read_text(encoding="utf-8")
        assert f"`{block.marks['file']}`" in text, "the page names the file for its readers"


@pytest.mark.parametrize(
    "block", [block for block in all_blocks() if block.kind in {"ci", "blocks", "playbook"}], ids=str
)
def test_what_others_execute_is_executed_by_them(block: Block) -> None:
    commands = re.sub(r"\s+#.*$", "", block.text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    lanes = (ROOT / ".ci/blocks.toml").read_text(encoding="utf-8")
    names = {each["name"] for each in tomllib.loads(lanes)["block"]}
    played = (ROOT / "tests/ansible/test_playbook.py").read_text(encoding="utf-8")
    if block.kind == "playbook":
        playbooks = re.findall(r"ansible-playbook (\S+)", block.text)
        assert playbooks
        assert [name for name in playbooks if f'play(lab[0], "{name}"' not in played] == []
        return
    for written in (line.split() for line in commands if line.strip()):
        words = written[written[0] == "sudo" :]
        words[0] = words[0].removeprefix(".venv/bin/")
        if block.kind == "ci":
            assert " ".join(words) in (ROOT / ".ci/run").read_text(encoding="utf-8")
        elif words[0] == ".ci/long":
            assert {word for word in words[1:] if not word.startswith("--")} <= names
        else:
            assert " ".join(words[:3] if words[0] == "testbed" else words[:2]) in lanes, words
