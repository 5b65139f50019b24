"""The code version of a run: commit, uncommitted changes, and the versions of all installed packages."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterable
from functools import cache
from importlib.metadata import distributions
from importlib.resources import files
from pathlib import Path

from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.table import format_table

_GIT_WITHIN_S = 10.0
_CODE = ("testbed", "node_agent", "scenarios")  # of a checkout; files beside them do not change a run
BUILD_FILE = "commit"  # of a wheel, written by the build (`scripts/build_hook.py`)


@cache
def source() -> dict[str, object]:
    """Return `commit` and `dirty` of the checkout from which the package is imported, or of the build of a wheel.

    Both are None if unknown, for example in a copy of the sources. The first call starts processes.
    """
    package = Path(str(files("testbed")))
    built = package / BUILD_FILE
    if built.is_file():
        commit, _, dirty = built.read_text(encoding="ascii").strip().partition(" ")
        return {"commit": commit, "dirty": dirty == "dirty"}
    return of_checkout(package.parent)


def of_checkout(folder: Path) -> dict[str, object]:
    """Return `commit` and `dirty` of the Git repository with this top folder; both None if it is no repository."""
    if not (folder / ".git").exists():
        return {"commit": None, "dirty": None}
    commit = _git(folder, "rev-parse", "HEAD")
    changes = _git(folder, "--no-optional-locks", "status", "--porcelain", "--", *_CODE)
    return {"commit": commit and commit.strip(), "dirty": None if changes is None else bool(changes.strip())}


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603  # constant words
            ["git", "-C", str(folder), *words],  # noqa: S607  # the user's git
            capture_output=True, text=True, check=False, timeout=_GIT_WITHIN_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


@cache
def packages() -> dict[str, str]:
    """Return the versions of all installed packages by name, sorted. The first call reads many files."""
    found: dict[str, str] = {}
    for each in distributions():
        if each.name:
            found.setdefault(each.name, each.version)  # imports find the first one on the path as well
    return dict(sorted(found.items(), key=_folded))


def _folded(item: tuple[str, str]) -> str:
    return item[0].casefold()


def digest_of(jobs: Iterable[Job]) -> str:
    """Return the SHA-256 of the job table of a trace segment."""
    return hashlib.sha256(format_table(list(jobs)).encode()).hexdigest()
