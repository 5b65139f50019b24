"""`testbed resume`."""

from __future__ import annotations

from pathlib import Path

from testbed.cli.bodies.launch import launch_resumed


def resume(*, run: Path, as_json: bool) -> int:
    result = launch_resumed(run, as_json=as_json)
    return 0 if result.summary["done"] == result.summary["jobs"] else 1
