"""`node-agent` with options that it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.live import HANG_S


def node_agent(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "node_agent", "--node", "n1", "--driver", "null"),
            *("--broker", "mqtt://127.0.0.1:1", *options),
        ],
        cwd=folder,
        env={"PATH": "", "PYTHONPATH": ":".join(sys.path), "DFRS_CLAIMS_DIR": str(folder / "claims")},
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )
