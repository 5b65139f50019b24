"""The commands of the pages in the order of a reader: the blocks of a page as one shell script.

Comments before a fenced block have the information that a test needs; they are invisible to readers of the page:

| comment | meaning |
|---|---|
| `<!-- run: KIND -->` | the block is executed with others of this kind (`KINDS`), and not in continuous integration |
| `<!-- file: PATH -->` | the block is the content of this file, which the text before the block names |
| `<!-- before: COMMANDS -->`, `after` | commands that the page presupposes here, or leaves to the reader |
| `<!-- background: COMMAND -->`, `started` | runs in another terminal; it has started when `started` succeeds |
| `<!-- stays: COMMAND -->` | the block itself runs in another terminal; it has started when COMMAND succeeds |
| `<!-- until: COMMAND -->` | the block runs until it is stopped, after COMMAND has succeeded; its output is in `$log` |
| `<!-- exits: CODES -->` | exit codes that the block may have; 0 without this comment |
| `<!-- short: WORDS -->` | words that make the last command of the block take less time |

In commands, `runs/NAME` stands for the newest run directory.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from support.docs.blocks import PAGES

KINDS = {
    "long": "live runs, calibrations and installations that take minutes",
    "hours": "live campaigns and tests that take hours",
    "log": "a log of the Parallel Workloads Archive, which is not part of the project",
    "root": "virtual machines in a box, so root, QEMU and libvirt",
    "containers": "a Docker engine",
    "xen": "nested Xen nodes, so root and QEMU",
    "machines": "several machines, for which hosts of their own root file systems stand",
    "playbook": "machines with systemd; tests/ansible plays the roles that need none",
    "ci": "commands that `.ci/run` executes",
    "blocks": "commands that steps of `.ci/blocks.toml` execute",
}
MARKS = {"run", "file", "before", "after", "background", "started", "stays", "until", "exits", "short"}
_BLOCK = re.compile(
    r"^(?P<marks>(?:<!-- [a-z]+: [^\n]*? -->\n)*)```(?P<language>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
_MARK = re.compile(r"<!-- ([a-z]+): (.*?) -->")
_HEAD = """set -euo pipefail
newest() { basename "$(ls -td runs/*/ | head -1)"; }
export -f newest
trap 'code=$?; for job in $(jobs -p); do kill -- "-$job" 2>/dev/null || kill "$job" || true; done; exit $code' EXIT
trap 'exit 143' TERM
"""
_BACKGROUND = """log=$(mktemp)
set -m
( {text}
) >"$log" 2>&1 &
server=$!
set +m
until ( {started}
) >"$log.try" 2>&1; do
  kill -0 "$server" || {{ cat "$log" "$log.try"; exit 1; }}
  sleep 0.2
done
"""
_STOP = """kill -INT -- "-$server"
wait "$server" || [ $? -ge 130 ]
"""
_EXITS = """code=0
bash -ec {text} || code=$?
case $code in {codes}) ;; *) exit "$code";; esac
"""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page, and the comments before it."""

    page: str
    language: str
    text: str
    marks: dict[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The requirement of the block, a key of `KINDS`; empty if it can be executed anywhere."""
        return self.marks.get("run", "")

    @property
    def is_command(self) -> bool:
        return self.language == "sh" or (self.language == "python" and "run" in self.marks)

    def script(self) -> str:
        """Return the shell commands that execute this block."""
        marks = self.marks
        if "file" in marks:
            path, folder = shlex.quote(marks["file"]), shlex.quote(str(Path(marks["file"]).parent))
            return f"mkdir -p {folder}\nprintf %s {shlex.quote(self.text)} >{path}\n"
        text = self.text.replace("runs/NAME", "runs/$(newest)")
        if self.language == "python":
            text = f"python -c {shlex.quote(text)}\n"
        if "short" in marks:
            text = f"{text.rstrip()} {marks['short']}\n"
        if "stays" in marks:
            text = _BACKGROUND.format(text=text, started=marks["stays"])
        elif "until" in marks:
            text = _BACKGROUND.format(text=text, started=marks["until"]) + _STOP
        elif "exits" in marks:
            text = _EXITS.format(text=shlex.quote(text), codes="|".join(marks["exits"].split()))
        if "background" in marks:
            text = _BACKGROUND.format(text=marks["background"], started=marks["started"]) + text
        parts = (marks.get("before", ""), text.rstrip(), marks.get("after", ""))
        return "".join(f"{part}\n" for part in parts if part)


def blocks_of_page(page: Path) -> list[Block]:
    """Return the blocks of a page that are commands or files, in order."""
    found = []
    for match in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        block = Block(page.name, match["language"], match["text"], dict(_MARK.findall(match["marks"])))
        if block.is_command or "file" in block.marks:
            found.append(block)
    return found


def all_blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks_of_page(page)]


def script_of(page: Path, kinds: Collection[str], filled: Mapping[str, str] | None = None) -> str:
    """Return a script that executes the page's blocks of these kinds, and those without a kind, in order.

    It is empty if the page has no command of these kinds or, with no kinds, only commands of some kind. `filled` maps
    texts of a page about a lab to their replacements in the tests.
    """
    blocks = [block for block in blocks_of_page(page) if not block.kind or block.kind in kinds]
    if not any(block.is_command and (block.kind in kinds or not kinds) for block in blocks):
        return ""
    steps = [f"echo {shlex.quote('## ' + block.text.splitlines()[0])}\n{block.script()}" for block in blocks]
    script = _HEAD + "".join(steps) + "wait\n"
    for said, here in (filled or {}).items():
        script = script.replace(said, here)
    return script
