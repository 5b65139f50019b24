"""`testbed resume`: resumes a run whose controller was lost."""

from __future__ import annotations

from pathlib import Path

from testbed.cli.bodies.launch import all_well, launch_resumed


def resume(*, run: Path, as_json: bool) -> int:
    result = launch_resumed(run, as_json=as_json)
    return 0 if all_well(result) else 1
