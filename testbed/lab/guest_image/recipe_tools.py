"""Runs the tools that build the guest image."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from testbed.errors import RunError, UserError

_TIMEOUT_S = 600.0
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C", "SOURCE_DATE_EPOCH": "0"}


def run(argv: Sequence[str], cwd: Path | None = None, **more: str) -> str:
    """Run a tool to its end in a fixed environment and return its output.

    Raises `UserError` when the tool is not installed, `RunError` with its last output when it fails.
    """
    need(argv[0])
    done = subprocess.run(  # noqa: S603  # fixed tools, no shell
        argv, cwd=cwd, env=_ENVIRONMENT | more, capture_output=True, text=True, errors="replace", check=False,
        timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
        raise RunError(f"{' '.join(argv)}: exit code {done.returncode}: {' | '.join(words[-5:])}")
    return done.stdout


def need(tool: str) -> None:
    """Raise `UserError` that names the package to install if a tool is missing."""
    packages = {"gcc": "gcc libc6-dev", "strip": "binutils", "ldd": "libc-bin", "dpkg-deb": "dpkg"}
    if shutil.which(tool, path=_ENVIRONMENT["PATH"]) is None:
        package = packages.get(tool, "apt" if tool.startswith("apt") else tool)
        hint = "a Debian system" if package == "apt" else f"it to be installed: apt-get install {package}"
        raise UserError(f"guest image: no {tool} here: expected {hint}")


def sha256(data: bytes | Path) -> str:
    """Return the SHA-256 of bytes, or of a file's content, in hexadecimal."""
    if isinstance(data, bytes):
        return hashlib.sha256(data).hexdigest()
    with data.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
