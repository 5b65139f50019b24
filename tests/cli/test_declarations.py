"""Commands are declared separately from their bodies: help needs only the declarations, and each has its body."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from support.live import HANG_S

import testbed.cli
from testbed.cli.deferred import body_of
from testbed.cli.main import cli

FOLDER = Path(testbed.cli.__file__).parent
HEAVY = {
    "aiohttp", "aiomqtt", "asyncio", "cryptography", "docker", "fabric", "jinja2", "libvirt", "matplotlib", "numba",
    "numpy", "pandas", "polars", "psutil", "pyarrow", "pydantic", "pytest", "rich", "testbed.cli.bodies",
}  # fmt: skip


def commands(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Yield path and command of all commands in a group, including nested groups."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from commands(command, inner)
        else:
            yield inner.command_path, command


COMMANDS = dict(commands(cli, click.Context(cli, info_name="testbed")))


LOADED_BY_HELP = """
import sys
from testbed.cli.main import cli
for line in sys.stdin:
    cli.main([*line.split()[1:], "--help"], standalone_mode=False)
print(*sys.modules, file=sys.stderr)
"""


def test_help_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED_BY_HELP], input="\n".join(["testbed", *COMMANDS]), capture_output=True, text=True,
        check=True, timeout=HANG_S,
    )  # fmt: skip
    loaded = set(done.stderr.split())
    assert {"testbed.cli.main", "testbed.cli.bound", "testbed.cli.trace"} <= loaded
    assert not loaded & HEAVY
    assert done.stdout.count("Usage: ") == len(COMMANDS) + 1


@pytest.mark.parametrize("path", COMMANDS)
def test_a_command_has_a_body_with_its_parameters(path: str) -> None:
    command = COMMANDS[path]
    assert command.callback is not None
    body = body_of(inspect.unwrap(command.callback))
    assert set(inspect.signature(body).parameters) == {each.name for each in command.params if each.expose_value}


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_has_a_help(path: str) -> None:
    assert not [each.opts for each in COMMANDS[path].params if isinstance(each, click.Option) and not each.help]


def test_only_what_needs_an_extra_is_imported_in_a_function() -> None:
    for path in FOLDER.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for function in ast.walk(ast.parse(text)):
            for node in ast.walk(function) if isinstance(function, ast.FunctionDef) else ():
                if isinstance(node, ast.Import | ast.ImportFrom):
                    line = text.splitlines()[node.lineno - 1]
                    assert re.search(r"# needs the extra \w+$", line), f"{path}:{node.lineno}: {line}"


@pytest.mark.parametrize(
    ("package", "words", "extra"),
    [
        ("aiohttp", ["dashboard"], "dashboard"),
        ("cryptography", ["ca", "init", "certificates", "--lab", "lab-1"], "secure"),
        ("jinja2", ["calibrate", "--fit-only", "--report"], "report"),
        ("matplotlib", ["campaign", "rr7659-unscaled"], "campaign"),
        ("polars", ["compare", "runs/NAME"], "report"),
        ("polars", ["query", "runs/NAME", "SELECT 1"], "query"),
        ("pytest", ["check", "quickstart"], "check"),
    ],
)
def test_without_its_extra_a_command_says_what_to_install(
    package: str, words: list[str], extra: str, tmp_path: Path
) -> None:
    code = f"import sys\nsys.modules[{package!r}] = None\nfrom testbed.cli.main import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=HANG_S
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.endswith(f"pip install 'dfrs-testbed[{extra}]'\n")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
