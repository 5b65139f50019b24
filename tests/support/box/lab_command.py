"""A lab of a test's scenario, which the test controls by the command line, as users do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from support.live import HANG_S

COMMAND = Path(__file__).with_name("box_command.py")  # its agents use no hypervisor


class LabCommand:
    """`testbed lab` for one scenario file."""

    real_driver = False  # if not, agents use processes as guests, or none on nested Xen

    def __init__(self, name: str, file: Path) -> None:
        self.name = name
        self.file = file

    def start(self, *arguments: str, cut_at: str = "") -> subprocess.Popen[str]:
        """Start the command; with `cut_at` it pauses before it makes a part of that kind, until SIGTERM."""
        return subprocess.Popen(
            [sys.executable, str(COMMAND), "lab", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            env={
                **os.environ,
                "DFRS_TEST_CUT_AT": cut_at,
                "DFRS_TEST_REAL_DRIVER": "1" if self.real_driver else "",
            },
        )  # fmt: skip

    def run(self, *arguments, code=0):
        with self.start(*arguments) as child:
            out, said = child.communicate(timeout=HANG_S)
        assert child.returncode == code, said
        return out, said

    def up(self):
        out, _ = self.run("up", str(self.file), "--json")
        return json.loads(out)

    def status(self, code=0):
        out, _ = self.run("status", self.name, "--json", code=code)
        return json.loads(out)[0]
