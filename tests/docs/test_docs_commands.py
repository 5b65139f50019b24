"""The program knows the options of every command in the pages, even of those that tests/install does not execute."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from support.docs.blocks import Line, lines

LINES = lines()


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
