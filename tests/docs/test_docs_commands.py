"""Every command in the documentation: understood by the program, and executed, here or by the test that is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from support.docs.blocks import PAGES, ROOT, Line, lines
from support.live import HANG_S
from support.workload.site_jobs import SACCT_SAMPLE

LINES = lines()
# these need no lab, and are quick: they are executed below, in the order of the pages
HERE = ("ca", "trace generate", "trace convert", "policies", "simulate", "doctor", "cleanup --dry-run", "bound")
# the others, by their first words: the test that executes them, and the words in it by which it does
ELSEWHERE = {
    "--hosts": ("tests/ansible/test_node_command.py", '"doctor", "--hosts"'),
    "calibrate": ("tests/calibration/test_calibrate_command.py", '"testbed", "calibrate"'),
    "campaign": ("tests/support/campaign/campaign_files.py", '"testbed", "campaign"'),
    "check": ("tests/checks/test_check_live.py", "sys.exit(check("),
    "cleanup": ("tests/secure/test_cleanup.py", "lab.cleanup("),
    "compare": ("tests/compare/test_compare_command.py", "invoke(compare,"),
    "control": ("tests/control/test_orders_live.py", '"control", "stop"'),
    "dashboard": ("tests/report/test_dashboard_page.py", "sys.exit(dashboard("),
    "lab down": ("tests/box/test_box_lab.py", 'run("down",'),
    "lab up": ("tests/box/test_box_lab.py", 'run("up",'),
    "lab who": ("tests/lab/test_takeover.py", 'command("who",'),
    "node drain": ("tests/control/test_orders_live.py", '"node", "drain"'),
    "node return": ("tests/control/test_orders_live.py", '"node", "return"'),
    "node": ("tests/ansible/test_node_command.py", '"node", "add"'),
    "node-agent": ("tests/secure/test_cleanup.py", '"-m", "node_agent"'),
    "nodes": ("tests/ansible/test_node_command.py", 'run("nodes",'),
    "query": ("tests/measure/test_query_command.py", "invoke(query,"),
    "report": ("tests/report/test_report_command.py", "invoke(report,"),
    "resume": ("tests/control/test_resume_live.py", 'command=("testbed", "resume", '),
    "run": ("tests/support/control/live_run.py", '"testbed", "run"'),
    "services": ("tests/containers/test_services.py", '"testbed", "services"'),
    "why": ("tests/report/test_job_story.py", "invoke(why,"),
    "trace info": ("tests/workload/test_trace_command.py", '"info",'),
}


def test_there_are_commands_in_the_pages() -> None:
    assert {line.page for line in LINES} >= {"README.md", "install.md", "security.md", "queries.md"}
    assert len(LINES) > 30


@pytest.mark.parametrize("line", LINES, ids=str)
def test_a_command_is_understood(line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("certificates/nodes/n1", "certificates/controllers/alice", "runs/NAME"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    if line.words[0] == "testbed":
        from testbed.cli.main import cli as command
    else:
        from node_agent.cli import cli as command
    understand(command, list(line.words))


def understand(command: click.Command, words: list[str]) -> None:
    """Parse a command line as the program does, down to the last command; raises `click.ClickException`."""
    context = command.make_context(words[0], words[1:])
    rest = [*context._protected_args, *context.args]
    if isinstance(command, click.Group):
        assert rest, f"{words}: which command?"
        _, inner, arguments = command.resolve_command(context, rest)
        assert inner is not None
        understand(inner, [rest[0], *arguments])


def first_words(line: Line) -> str:
    """Return the key of a command in `HERE` or `ELSEWHERE`."""
    words = line.words if line.words[0] != "testbed" else line.words[1:]
    if "--hosts" in words:
        return "--hosts"
    for key in (" ".join(words[:2]), words[0]):
        if key in HERE or key in ELSEWHERE:
            return key
    raise AssertionError(f"{line}: no test is named that executes it")


@pytest.mark.parametrize("key", sorted({first_words(line) for line in LINES} - set(HERE)))
def test_another_test_executes_it(key: str) -> None:
    name, words = ELSEWHERE[key]
    assert words in (ROOT / name).read_text(encoding="utf-8")


def test_no_command_is_named_that_no_page_has() -> None:
    assert {first_words(line) for line in LINES} - set(HERE) == set(ELSEWHERE)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_need_no_lab_work(page: Path, tmp_path: Path) -> None:
    mine = [
        line for line in LINES if line.page == page.name and line.words[0] == "testbed" and first_words(line) in HERE
    ]
    (tmp_path / "january.txt").write_text(SACCT_SAMPLE, encoding="utf-8")  # the README gets it from a batch system
    for line in mine:
        done = subprocess.run(
            [sys.executable, "-m", *line.words], cwd=tmp_path, capture_output=True, text=True, check=False,
            timeout=HANG_S, env={**os.environ, **dict(each.split("=", 1) for each in line.variables)},
        )  # fmt: skip
        if line.words[1] == "doctor":  # this machine may be sick
            assert done.returncode in {0, 1, 2}
            assert "control groups" in done.stdout, f"{line}: {done.stdout}{done.stderr}"
        elif line.words[1:3] == ("ca", "revoke"):  # there are no machines here that could be told
            assert done.returncode == 1, f"{line}: {done.stdout}{done.stderr}"
            assert "no machine has the list" in done.stdout
        else:
            assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
