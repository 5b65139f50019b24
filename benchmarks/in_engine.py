"""Run a command, as root, with a temporary Docker engine whose cgroup driver is cgroupfs.


    python benchmarks/in_engine.py -- testbed calibrate benchmarks/shares-containers.toml --experiments share-accuracy

The engine of a machine with systemd creates the control groups of containers through systemd, outside of a node's
limits. The command finds the engine by DOCKER_HOST in its environment. The exit code is the command's.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.containers.engine import engine, why_not

from node_agent.drivers.caps.mounts import hierarchies
from node_agent.drivers.containers.driver import PARENT


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="+", help="the command and its arguments, after --")
    chosen = parser.parse_args()
    if why := why_not():
        raise SystemExit(f"in_engine.py: {why}")
    mounted = hierarchies(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
    made = [one.folder(PARENT) for one in mounted if not one.folder(PARENT).exists()]
    try:
        with engine() as found:
            return subprocess.run(chosen.command, env={**os.environ, "DOCKER_HOST": found.url}, check=False).returncode
    finally:
        for folder in made:  # the folders in which agents made the groups of their nodes
            with contextlib.suppress(OSError):
                folder.rmdir()


if __name__ == "__main__":
    raise SystemExit(main())
