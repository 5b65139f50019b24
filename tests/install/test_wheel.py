"""Every command of the README, with the wheel of this checkout in a virtual environment of its own.

Commands run in an unpacked source distribution, as in a clone, and in an empty folder with the names of packaged
scenarios. Those that take minutes run with --long.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from email.parser import Parser
from pathlib import Path

import pytest
from support.archives import unpack
from support.docs.blocks import ROOT, command_lines
from support.live import HANG_S
from support.short_run import write_short_run
from support.workload.site_jobs import SACCT_SAMPLE

pytestmark = pytest.mark.slow
COMMANDS = command_lines(ROOT / "README.md")
EXTRAS = "campaign,check,dashboard,influx,query,report,secure,simulate"  # without what needs libvirt's headers
CONSTRAINTS = ROOT / "tests" / "constraints.txt"


@dataclass(frozen=True, slots=True)
class Row:
    """What is run for a command of the README, which is the key of this row.

    `clone` and `empty` are shell commands for the two folders, by default the README's own and none; with `both` one
    for both. Where `clone` is not the README's own, `why` is the reason. RUN is the directory of a short run.
    """

    clone: str = ""
    empty: str = ""
    both: bool = False
    why: str = ""
    says: str = ""
    codes: tuple[int, ...] = (0,)


_NEEDS_ROOT = "it changes the machine: root makes a lab, which tests/box does"
_INSTALLS = "it installs packages of Debian"
_TLS_DIR = "TESTBED_TLS_DIR=certificates/controllers/alice"
_A_SERVER = "it runs until it is stopped"
_STOPPED = """
coproc { exec testbed dashboard --port 0 --json; }
read -r line <&"${COPROC[0]}"
python -c 'import json, sys, urllib.request as u; print(u.urlopen(json.loads(sys.argv[1])["url"]).status)' "$line"
kill "$COPROC_PID"
"""
_PARSES = "it needs another machine; its options are checked by tests/docs, it is executed by tests/secure"
_SACCT = (
    "TZ=UTC sacct --allusers --parsable2 --starttime 2026-01-01 --endtime 2026-02-01 --format "
    "JobIDRaw,Submit,Start,End,ElapsedRaw,State,NCPUS,NNodes,ReqMem,MaxRSS,NTasks,TimelimitRaw,Partition > january.txt"
)
_CONVERT = (
    "testbed trace convert january.txt january.csv --from sacct --cores-per-node 48 --node-memory-gb 192 --task node"
)
_LOG = "the log is not part of the project; tests/workload reads it where it is"

QUICK = {
    "testbed trace generate lublin --nodes 128 --jobs 1000 --seed 1 -o trace.csv": Row(
        both=True
    ),
    'testbed simulate trace.csv --nodes 128 --policy "/per/OPT=MIN" --overheads linear:fixed_s=2,gb_per_s=0.5': Row(
        both=True, says="/per/OPT=MIN"
    ),
    'testbed simulate trace.csv --nodes 128 --policy "GreedyPM */per/OPT=MIN/MINVT=600" --policy EASY': Row(
        both=True, says="EASY"
    ),
    "testbed ca init certificates --lab mylab": Row(both=True),
    "testbed ca issue certificates broker --host broker.example": Row(both=True),
    "testbed ca issue certificates node n1 --host 192.0.2.11": Row(both=True),
    "testbed ca issue certificates controller alice": Row(both=True),
    "testbed ca broker-files certificates --out broker-files": Row(both=True),
    "pip install '.[dashboard]' && testbed dashboard": Row(
        clone=_STOPPED, both=True, why=_A_SERVER, says="200"
    ),
    "pip install '.[report]' && testbed report runs/NAME --simulate": Row(
        clone="testbed report RUN --simulate", both=True, why="NAME stands for a run", says="report.html"
    ),
    "pip install '.[query]' && testbed query runs/NAME \"SELECT job, penalty_s FROM rescheduling\"": Row(
        clone='testbed query RUN "SELECT job, penalty_s FROM rescheduling"', both=True, why="NAME stands for a run",
        says="penalty_s",
    ),
    "testbed why runs/NAME 2": Row(
        clone="testbed why RUN 2", both=True, why="NAME stands for a run", says="job 2 is done"
    ),
    "testbed trace info HPC2N-2002-2.2-cln.swf.gz --reading hpc2n": Row(
        clone="testbed trace info trace.csv", why=_LOG, says="1000"
    ),
    'testbed run scenarios/hpc2n-hour.toml --trace HPC2N-2002-2.2-cln.swf.gz --policy "GreedyPM '
    '*/per/OPT=MIN/MINVT=600" --policy EASY': Row(
        clone="testbed run scenarios/hpc2n-hour.toml --trace short.csv --dry-run --policy EASY",
        empty="testbed run hpc2n-hour --trace short.csv --dry-run --policy EASY",
        why=_LOG,
        says="short.csv: a job table takes no reading, yet 'hpc2n' was given",  # the scenario's own
        codes=(2,),
    ),
    _SACCT: Row(clone="testbed trace convert --help", why="no Slurm is here", says="sacct"),
    _CONVERT: Row(both=True),
    'testbed simulate january.csv --nodes 100 --policy EASY --policy "GreedyPM */per/OPT=MIN/MINVT=600"': Row(
        both=True, says="EASY"
    ),
    "sudo .venv/bin/testbed lab up scenarios/kvm-two-nodes.toml": Row(
        clone="testbed lab up --help", why=_NEEDS_ROOT, says="kvm-two-nodes"
    ),
    "sudo .venv/bin/testbed run scenarios/kvm-two-nodes.toml": Row(
        clone="testbed run scenarios/kvm-two-nodes.toml --dry-run", empty="testbed run kvm-two-nodes --dry-run",
        why=_NEEDS_ROOT, says="jobs",
    ),
    "sudo .venv/bin/testbed lab up scenarios/xen-nested.toml": Row(
        clone="testbed lab up --help", why=_NEEDS_ROOT, says="SCENARIO"
    ),
    "sudo .venv/bin/testbed run scenarios/xen-nested.toml": Row(
        clone="testbed run scenarios/xen-nested.toml --dry-run", empty="testbed run xen-nested --dry-run",
        why=_NEEDS_ROOT, says="jobs",
    ),
    "sudo .venv/bin/testbed check --lab scenarios/xen-nested.toml": Row(
        clone="testbed check --list --lab scenarios/xen-nested.toml", empty="testbed check --list --lab xen-nested",
        why=_NEEDS_ROOT, says="test_memory.py::",
    ),
    "sudo .venv/bin/testbed lab down": Row(clone="testbed lab down --help", why=_NEEDS_ROOT, says="SCENARIO"),
    "sudo ./scripts/debian-packages": Row(clone="bash -n scripts/debian-packages", why=_INSTALLS),
    "sudo ./scripts/debian-packages xen": Row(clone="grep -c mmdebstrap scripts/debian-packages", why=_INSTALLS),
    "python3 -m venv .venv && . .venv/bin/activate && pip install '.[libvirt,secure]'": Row(
        clone="pip install --dry-run --no-deps --quiet --report - '.[libvirt,secure]'",
        why="libvirt-python is compiled against headers that not every machine has", says="libvirt",
    ),
    "./scripts/test": Row(clone="bash -n scripts/test", why="it runs this test"),
    "node-agent --lab mylab --node n1 --broker mqtts://broker.example:8883 --tls-dir certificates/nodes/n1 --address "
    "192.0.2.11 --cpus 8 --memory-mib 32000": Row(clone="node-agent --help", why=_PARSES, says="--tls-dir"),
    f"{_TLS_DIR} testbed nodes --lab mylab --broker mqtts://broker.example:8884": Row(
        clone=f"{_TLS_DIR} testbed nodes --lab mylab --broker mqtts://127.0.0.1:1",
        why=_PARSES, says="127.0.0.1:1", codes=(1, 2),
    ),
}  # fmt: skip
LONG = {
    "python3 -m venv .venv && . .venv/bin/activate && pip install . && testbed run scenarios/quickstart.toml": Row(
        empty="testbed run quickstart", says="runs/"
    ),
    "testbed calibrate --quick --report": Row(says="calibration.html"),
    "testbed compare runs/* --overheads calibration.toml": Row(
        says="Simulated with", codes=(0, 1)  # 1: on a busy machine every run counts as disturbed
    ),
    "pip install '.[check]'": Row(),
    "testbed check --lab scenarios/quickstart.toml": Row(empty="testbed check --lab quickstart", says="passed"),
    "testbed campaign rr7659-unscaled": Row(
        clone="testbed campaign scenarios/campaigns/rr7659-unscaled.toml --limit 1",
        empty="testbed campaign rr7659-unscaled --limit 1", why="a hundred traces take hours", says="0 failed",
    ),
}  # fmt: skip


MAKERS = {  # of the files that commands expect of others before them
    "trace.csv": "testbed trace generate lublin --nodes 128 --jobs 1000 --seed 1 -o trace.csv",
    "january.csv": _CONVERT,
    "certificates": "testbed ca init certificates --lab mylab",
    "calibration.toml": "testbed calibrate --quick --report",
}


def short(word: str) -> str:
    """Return how a test's name has a word of its case."""
    return word.strip().partition("\n")[0][-50:]


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

    def check(self, row: Row, command: str, folder: str, within_s: float = HANG_S) -> None:
        if "RUN" in command or "runs/*" in command:
            command = command.replace("RUN", str(self.run(folder)))
        for name, maker in MAKERS.items():  # by the test before, if that was chosen
            if name in command and command != maker and not (self.folders[folder] / name).exists():
                made = self.shell(maker, folder, within_s)
                assert made.returncode == 0, made.stdout + made.stderr
        done = self.shell(command, folder, within_s)
        told = f"{command}: exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        assert done.returncode in row.codes, told
        assert "Traceback" not in done.stderr, told
        assert row.says in done.stdout + done.stderr, told

    def run(self, folder: str) -> Path:
        """Return the directory of a short run, made when it is first asked for."""
        if folder not in self.runs:
            done = self.shell("testbed run short.toml --out runs", folder)
            assert done.returncode == 0, done.stdout + done.stderr
            (found,) = (self.folders[folder] / "runs").glob("*-short")
            self.runs[folder] = found.relative_to(self.folders[folder])
        return self.runs[folder]


def shell(command: str, folder: Path, venv: Path | None, within_s: float) -> subprocess.CompletedProcess[str]:
    """Run a command as a user's shell does: nothing says where modules are but the environment that is active."""
    ours = ("PYTHON", "VIRTUAL_ENV", "TESTBED_", "DFRS_TEST_WHEEL")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    path = [each for each in environment["PATH"].split(os.pathsep) if each != str(Path(sys.executable).parent)]
    if venv is not None:
        environment["VIRTUAL_ENV"] = str(venv)
        path.insert(0, str(venv / "bin"))
    environment |= {"PATH": os.pathsep.join(path), "PIP_CONSTRAINT": str(CONSTRAINTS)}
    return subprocess.run(
        ["bash", "-ec", command], cwd=folder, env=environment, capture_output=True, text=True, check=False,
        timeout=within_s, stdin=subprocess.DEVNULL,
    )  # fmt: skip


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
        (folder / "january.txt").write_text(SACCT_SAMPLE)
    venv = base / "venv"
    made = shell(f"python3 -m venv {venv} && {venv}/bin/pip install --quiet '{wheel}[{EXTRAS}]'", base, None, 1200)
    assert made.returncode == 0, made.stdout + made.stderr
    return Installed(wheel, sdist, venv, folders)


def test_every_command_of_the_readme_has_a_row() -> None:
    assert {*QUICK, *LONG} == set(COMMANDS)
    assert not QUICK.keys() & LONG.keys()
    for command, row in {**QUICK, **LONG}.items():
        assert bool(row.why) == bool(row.clone), f"{command}: the reason why it is not run"


def cases(rows: dict[str, Row]) -> list[tuple[str, str, str]]:
    """Return the README's command, the folder and the command that is run there, in the README's order."""
    found = []
    for command in (command for command in dict.fromkeys(COMMANDS) if command in rows):
        row = rows[command]
        found.append((command, "clone", row.clone or command))
        if row.both or row.empty:
            found.append((command, "empty", row.empty or row.clone or command))
    return found


def test_the_wheel_holds_the_files_of_the_checkout_and_no_others(installed: Installed) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "testbed", "node_agent", "scenarios"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    expected = {
        f"testbed/{name}" if name.startswith("scenarios/") else name for name in listed if (ROOT / name).exists()
    }
    held = {name for name in zipfile.ZipFile(installed.wheel).namelist() if ".dist-info/" not in name}
    assert held == expected


def test_the_wheel_of_the_source_distribution_is_the_same(installed: Installed, tmp_path: Path) -> None:
    source = unpacked(installed.sdist, tmp_path / "source")
    build(source, tmp_path / "dist")
    (again,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(installed.wheel) as one, zipfile.ZipFile(again) as other:
        assert {name: one.read(name) for name in one.namelist()} == {
            name: other.read(name) for name in other.namelist()
        }


def test_the_extras_that_the_readme_names_are_in_the_wheel(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        about = Parser().parsestr(archive.read(name).decode())
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    installs = {extra for found in re.findall(r"'\.\[([a-z,]+)\]'", readme) for extra in found.split(",")}
    named = installs & set(about.get_all("Provides-Extra", []))
    assert named >= {"campaign", "check", "dashboard", "influx", "libvirt", "query", "report", "simulate"}


def test_what_runs_in_the_clone_is_what_is_installed(installed: Installed) -> None:
    code = "from testbed.cli.main import main; import testbed, node_agent; print(testbed.__file__, node_agent.__file__)"
    (installed.venv / "bin" / "ask").write_text(code)
    said = installed.shell(f"python {installed.venv}/bin/ask", "clone").stdout.split()
    assert len(said) == 2
    assert all(path.startswith(str(installed.venv)) for path in said)
    assert "site-packages" in installed.shell("head -1 $(command -v testbed); pip show -f dfrs-testbed", "clone").stdout


def test_the_help_is_quick(installed: Installed) -> None:
    """Less than 0.3 s of CPU time in the best of five: a busy machine must not decide."""
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
        "testbed check --list --lab quickstart": "test_memory.py::",
        "testbed calibrate quickstart --quick --dry-run": "trials, about",
    }.items():
        installed.check(Row(says=word), command, folder)


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
    """Outside of any project of ours; failed assertions show their values, as those of test modules do."""
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


@pytest.mark.parametrize(("command", "folder", "run"), cases(QUICK), ids=short)
def test_a_quick_command_of_the_readme(installed: Installed, command: str, folder: str, run: str) -> None:
    installed.check(QUICK[command], run, folder)


@pytest.mark.long
@pytest.mark.parametrize(("command", "folder", "run"), cases(LONG), ids=short)
def test_a_long_command_of_the_readme(installed: Installed, command: str, folder: str, run: str) -> None:
    installed.check(LONG[command], run, folder, 3600.0)
