"""The code blocks of the documentation."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"(?:^|\s{2,})# ?[^\n]*$", re.MULTILINE)
_ASSIGNMENT = re.compile(r"[A-Z_]+=.*")
OURS = ("testbed", "node-agent")


@dataclass(frozen=True, slots=True)
class Line:
    """A command of ours in a page: its words, and the variables set before it."""

    page: str
    words: tuple[str, ...]
    variables: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)}"


def blocks(page: Path, language: str) -> list[str]:
    return blocks_of(page.read_text(encoding="utf-8"), language)


def blocks_of(text: str, language: str) -> list[str]:
    return [block for found, block in _BLOCK.findall(text) if found == language]


def command_lines(page: Path) -> list[str]:
    """Return the command lines of a page's `sh` blocks as a user types them: continued lines joined, no comments."""
    text = "".join(_COMMENT.sub("", block.replace("\\\n", " ")) for block in blocks(page, "sh"))
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def lines() -> list[Line]:
    """Return every command of ours in every page."""
    found = []
    for page in PAGES:
        for block in [*blocks(page, "sh"), *blocks(page, "")]:
            text = _COMMENT.sub("", block.replace("\\\n", " "))
            lexer = shlex.shlex(text, posix=True, punctuation_chars="&\n")
            lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
            command: list[str] = []
            for word in [*lexer, "\n"]:
                if set(word) <= {"&", "\n"}:
                    found += _ours(page.name, command)
                    command = []
                else:
                    command.append(word)
    return found


def _ours(page: str, command: list[str]) -> list[Line]:
    start = next((index for index, word in enumerate(command) if not _ASSIGNMENT.fullmatch(word)), len(command))
    words = command[start:]
    if words and words[0] == "sudo":
        words = words[1:]
    if words:
        words = [Path(words[0]).name, *words[1:]]
    return [Line(page, tuple(words), tuple(command[:start]))] if words and words[0] in OURS else []
