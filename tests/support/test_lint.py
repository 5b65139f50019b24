"""The lint of tests: for each rule some findings, and near misses that are not findings."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.lint import main

SCRIPT = Path(__file__).parents[2] / "scripts/lint-tests"
SLOW = "import pytest\npytestmark = pytest.mark.slow\n"
HELPER = "def start(guest, work_units, cap): ...\n"
SUITE = "class Suite:\n    def spec(self, guest, seconds): ...\n"


def lint(tmp_path: Path, capsys: pytest.CaptureFixture[str], **sources: str) -> list[str]:
    """Lint modules of the given names and sources; return `line code` of each finding in the first."""
    folder = tmp_path / "tests" / "unit"
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, source in sources.items():
        files.append(folder / f"{name}.py")
        files[-1].write_text(source)
    code = main([str(files[0])])
    lines = capsys.readouterr().out.splitlines()
    assert code == bool(lines)
    assert all(line.startswith(f"{files[0]}:") for line in lines), lines
    return [f"{number} {found.split()[0]}" for number, found in (line.split(":", 2)[1:] for line in lines)]


FOUND = {
    "sleep": ["import time", "def test_a():", "    time.sleep(0.5)"],
    "sleep of asyncio": ["import asyncio", "async def main(x):", "    await asyncio.sleep(x)"],
    "sleep by its own name": ["from time import sleep", "def test_a():", "    sleep(1)"],
    "sleep in a browser": ["", "def test_a(page):", "    page.wait_for_timeout(500)"],
    "sleep in a loop that does not end by a state": [
        "import time", "def test_a():", "    while time.monotonic() < 5: time.sleep(0.1)",
    ],
    "sleep in a loop over numbers": ["import time", "def test_a():", "    for x in (1, 2): time.sleep(x)"],
    "sleep in a function that a loop calls": [
        "import time", "while todo():", "    def later(): time.sleep(1)",
    ],
    "bound": ["", "def test_a():", "    assert report.elapsed_s < 2.5"],
    "bound the other way round": ["", "def test_a():", "    assert 60 * 2 >= found['skew_ms']"],
    "bound of a chain": ["", "def test_a():", "    assert 0 < report.downtime_s < other_s < 60"],
    "bound of the largest": ["", "def test_a():", "    assert max(times_s) <= 1"],
    "bound of two readings": ["import time", "def test_a(a):", "    assert time.monotonic() - a < 3"],
    "bound with a slack": ["import time", "def test_a(a, b):", "    assert time.monotonic() - a < b + 1.5"],
    "bound by a constant": ["MOST = 5.0", "def test_a():", "    assert took < MOST"],
    "guard": ["import subprocess", "def test_a():", "    subprocess.run(['x'], timeout=60)"],
    "guard of asyncio": ["import asyncio", "async def main():", "    async with asyncio.timeout(20): pass"],
    "guard by position": ["import asyncio", "async def main(work):", "    await asyncio.wait_for(work, 20)"],
    "guard of a process": ["", "def test_a(child):", "    child.wait(5)"],
    "guard of a thread": ["", "def test_a(thread):", "    thread.join(5.0)"],
    "guard by a constant": ["WITHIN_S = 4 * 15", "def test_a(child):", "    child.communicate(timeout=WITHIN_S)"],
    "guard as a default": ["", "", "def until(there, *, within_s=10, why=''): ..."],
    "guard of a class": ["", "class Suite:", "    within_s: float = 30.0"],
    "guard by hand": ["import time", "def test_a():", "    ends_s = time.monotonic() + 20"],
}  # fmt: skip


@pytest.mark.parametrize("what", FOUND)
def test_what_depends_on_speed_is_found(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lint(tmp_path, capsys, test_a="\n".join(FOUND[what]) + "\n") == [f"3 {what.split(maxsplit=1)[0]}"]


NOT_FOUND = {
    "sleep of nothing": ["import asyncio", "async def main():", "    await asyncio.sleep(0)"],
    "sleep of something else": ["import guest", "def test_a():", "    guest.sleep(5)"],
    "poll by its condition": ["import time", "def test_a(x):", "    while not x.there(): time.sleep(0.1)"],
    "poll by its condition and the time": [
        "import time", "def test_a(x, s):", "    while x.less() and time.monotonic() < s: time.sleep(0.1)",
    ],
    "poll by its body": [
        "import time", "def test_a(x):", "    while True:", "        if x.there(): break", "        time.sleep(0.1)",
    ],
    "poll until it does not fail": [
        "import time", "def test_a(x):", "    while True:", "        try:", "            return x.connect()",
        "        except OSError:", "            time.sleep(0.1)",
    ],
    "order of readings": ["import time", "def test_a(a_s):", "    assert a_s <= found.at_s <= time.monotonic()"],
    "ratio of times": ["", "def test_a():", "    assert slow_s < 3 * fast_s"],
    "lower bound": ["", "def test_a():", "    assert report.elapsed_s > 0.5 and 2 <= took_s"],
    "sign": ["", "def test_a():", "    assert ahead_s <= 0"],
    "rate": ["", "def test_a():", "    assert found.mib_per_s < 9 and cpu_s / wall_s < 1.1 and units < 5"],
    "guard of the kit": [
        "from support.live import HANG_S", "def test_a(child):",
        "    child.wait(HANG_S)", "    child.run(timeout=HANG_S, within_s=HANG_S * 1000)",
    ],
    "guard that is none": ["", "def test_a(child):", "    child.poll(timeout=0); child.wait(); ','.join(x)"],
    "constant that is the kit's": [
        "from support.live import HANG_S", "WITHIN_S = HANG_S", "def test_a(child):", "    child.wait(WITHIN_S)",
    ],
    "interval of a poll": ["", "def test_a(x, end):", "    while x.runs(): end.wait(0.01)"],
    "option of the product": ["", "def test_a(bus):", "    bus.open(ack_timeout_s=0.2, keepalive_s=1)"],
    "time of certificates": ["import time", "def test_a(made, year_s):", "    made(time.time() + year_s)"],
}  # fmt: skip


@pytest.mark.parametrize("what", NOT_FOUND)
def test_a_near_miss_is_not_found(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lint(tmp_path, capsys, test_a="\n".join(NOT_FOUND[what]) + "\n") == []


VIRTUAL = """\
import asyncio
from testbed.lab.virtual_time import run_in_virtual_time
from helper import Slow, rehearse

class Fake:
    async def save(self):
        await asyncio.sleep(2)

async def pause():
    async with asyncio.timeout(30):
        await asyncio.sleep(5)

def test_a():
    async def main():
        await Fake().save()
        await asyncio.sleep(60)
        await pause()
        assert elapsed_s <= 67
    run_in_virtual_time(main())

def test_b():
    rehearse(Fake())
"""
HELPER_OF_VIRTUAL = """\
import asyncio
from testbed.lab.virtual_time import run_in_virtual_time

class Slow:
    async def start(self):
        await asyncio.sleep(3)

def rehearse(driver):
    return run_in_virtual_time(driver.save())
"""
REAL = """\
def test_c():
    asyncio.run(pause())
"""


def test_virtual_time_may_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lint(tmp_path, capsys, test_a=VIRTUAL, helper=HELPER_OF_VIRTUAL) == []
    # code that a test in real time uses, too, is not in virtual time
    assert lint(tmp_path, capsys, test_a=VIRTUAL + REAL, helper=HELPER_OF_VIRTUAL) == ["10 guard", "11 sleep"]
    # nor are helpers that no test uses, and threads
    assert lint(tmp_path, capsys, helper=HELPER_OF_VIRTUAL, test_a="") == ["6 sleep"]
    thread = VIRTUAL.replace("asyncio.sleep(2)", "time.sleep(2)").replace("import asyncio", "import asyncio, time")
    assert lint(tmp_path, capsys, test_a=thread, helper=HELPER_OF_VIRTUAL) == ["7 sleep"]


@pytest.mark.parametrize(
    "lines",
    [
        ["def test_a():", "    GuestSpec(work_units=10 ** 9)", "    os.kill(pid, 9)"],
        ["from helper import start", "async def test_a(driver):", "    await start('a', 5000, cap=1.0)",
         "    await driver.hold('a')"],
        ["UNITS = 70", "def test_a(driver):", "    async def main():", "        ProgramSpec(work_units=UNITS)",
         "        await driver.set_cap('a', 1.0)"],
        ["from helper import Suite", "class TestA(Suite):", "    def test_a(self):", "        self.spec('a', 0.6)",
         "        self.save_job()"],
    ],
)  # fmt: skip
def test_finite_work_that_a_test_acts_on_is_found(
    lines: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "\n".join(lines) + "\n"
    work = next(
        line for line in lines if "UNITS)" in line or "(work_units=" in line or ", 5000" in line or "0.6" in line
    )
    helper = HELPER + SUITE
    number = lines.index(work) + 1
    assert lint(tmp_path, capsys, test_a=SLOW + source, helper=helper) == [f"{number + 2} finite"]
    # near misses: not live, in virtual time, endless, throttled, or only waited for
    throttled = source.replace(work, work + "; set_cap('a', THROTTLED_CORES)")
    endless = source.replace("10 ** 9", "ENDLESS_UNITS").replace("5000", "ENDLESS_UNITS")
    endless = endless.replace("UNITS = 70", "UNITS = ENDLESS_UNITS").replace("0.6", "ENDLESS_UNITS")
    watched = source.replace("os.kill", "watch").replace("hold", "sample").replace("set_cap", "until")
    kit = "from support.live import ENDLESS_UNITS, THROTTLED_CORES\n"
    assert lint(tmp_path, capsys, test_a=source, helper=helper) == []
    for near_miss in (throttled, endless, watched.replace("save_job", "checksums")):
        assert near_miss != source
        assert lint(tmp_path, capsys, test_a=SLOW + kit + near_miss, helper=helper) == []


def test_a_suite_is_live_where_slow_tests_inherit_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = SUITE + "    def test_a(self, driver):\n        self.spec('a', 1)\n        driver.stop('a')\n"
    tests = "from suite import Suite\nclass TestA(Suite): ...\n"
    assert lint(tmp_path, capsys, suite=suite, test_a=tests) == []
    assert lint(tmp_path, capsys, suite=suite, test_a=SLOW + tests) == ["4 finite"]


def test_the_suite_that_is_shipped_is_live_where_slow_tests_inherit_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = "    def test_a(self):\n        self.spec('a', 1)\n        self.driver.stop('a')\n"
    shipped = tmp_path / "testbed/testing"
    shipped.mkdir(parents=True)
    (shipped / "core.py").write_text(SUITE.replace("Suite", "Core") + test)
    (shipped / "all.py").write_text("from testbed.testing.core import Core\nclass All(Core): ...\n")
    (shipped / "__init__.py").write_text("if TYPE_CHECKING:\n    from testbed.testing.all import All\n")
    tests = "from testbed.testing import All\nfrom testbed.other import More\nclass TestA(All): ...\n"
    (tmp_path / "tests").mkdir()
    for source, found in ((tests, []), (SLOW + tests, ["4 finite"])):
        (tmp_path / "tests/test_a.py").write_text(source)
        main([str(tmp_path / "tests"), str(shipped)])
        lines = capsys.readouterr().out.splitlines()
        assert [f"{line.split(':')[1]} {line.split()[1]}" for line in lines] == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("child.wait(5)  # speed: the product's own limit\n", []),
        ("# speed: the product's own limit,\n# which is tested\nchild.wait(5)\n", []),
        ("child.wait(5)  # speed: one\nchild.wait(5)\n", ["2 guard"]),
        ("child.wait(5)  # speed:\n", ["1 excuse"]),
        ("child.wait()  # speed: nothing to excuse\n", ["1 excuse"]),
        ("# speed: nothing to excuse\n\nchild.wait(5)\n", ["1 excuse", "3 guard"]),
        ("WITHIN_S = 5  # speed: a limit of the kernel\nchild.wait(WITHIN_S)\nchild.join(WITHIN_S)\n", []),
        ("child.wait('# speed: no comment', 5)\nchild.wait(5)\n", ["2 guard"]),
    ],
)
def test_an_exception_needs_a_reason_and_something_to_excuse(
    source: str, found: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lint(tmp_path, capsys, test_a=source) == found


def test_the_command_says_how_it_is_used_and_what_is_wrong(tmp_path: Path) -> None:
    def run(*words: object) -> tuple[int, str]:
        done = subprocess.run([SCRIPT, *map(str, words)], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    code, text = run("--help")
    assert code == 0
    assert "example:\n  scripts/lint-tests tests/agent" in text
    path = tmp_path / "test_a.py"
    code, text = run(path)
    assert code == 2
    assert f"no such file or folder: {path}" in text
    path.write_text("def (:\n")
    code, text = run(path)
    assert code == 2
    assert "not Python" in text
    assert "test_a.py, line 1" in text
    path.write_text("child.wait(5)\nassert took_s < 3\n")
    code, text = run(tmp_path)
    assert code == 1
    assert text == (f"{path}:1: guard 5 instead of support.live.HANG_S\n{path}:2: bound took_s is bounded by 3\n")
    path.write_text("child.wait()\n")
    assert run(path) == (0, "")
