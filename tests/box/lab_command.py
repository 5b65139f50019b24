"""A lab of a test's own scenario, made and asked by the command as users give it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

COMMAND = Path(__file__).with_name("box_command.py")  # with agents that drive nothing


class LabCommand:
    """`testbed lab` for one scenario file."""

    command = (str(COMMAND),)
    within_s = 120.0

    def __init__(self, name: str, file: Path) -> None:
        self.name = name
        self.file = file

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *self.command, "lab", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def run(self, *arguments, code=0):
        with self.start(*arguments) as child:
            out, said = child.communicate(timeout=self.within_s)
        assert child.returncode == code, said
        return out, said

    def up(self):
        out, _ = self.run("up", str(self.file), "--json")
        return json.loads(out)

    def status(self, code=0):
        out, _ = self.run("status", self.name, "--json", code=code)
        return json.loads(out)[0]
