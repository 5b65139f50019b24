"""Scenarios and campaigns that come with the package, found by name.

The files are in the project's folder `scenarios`, which a wheel contains as `testbed/scenarios`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from testbed.errors import UserError, nearest


def packaged_folder() -> Path:
    """Return the folder of packaged scenarios: inside the installed package, or next to it in a checkout."""
    package = Path(str(files("testbed")))
    inside = package / "scenarios"
    return inside if inside.is_dir() else package.parent / "scenarios"


def packaged_scenarios() -> dict[str, Path]:
    """Return the files of the packaged scenarios, by name."""
    return _named_files(packaged_folder())


def packaged_campaigns() -> dict[str, Path]:
    """Return the files of the packaged campaigns, by name."""
    return _named_files(packaged_folder() / "campaigns")


def find_scenario(text: str | Path) -> Path:
    """Return the file for a path, or for the name of a packaged scenario; raises `UserError`."""
    return _find(str(text), packaged_scenarios(), "scenario")


def find_campaign(text: str) -> Path:
    """Return the file for a path, or for the name of a packaged campaign; raises `UserError`."""
    return _find(text, packaged_campaigns(), "campaign")


def _named_files(folder: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def _find(text: str, known: Mapping[str, Path], what: str) -> Path:
    """Return the file; an existing file takes precedence over a packaged one, and a pipe counts as a file."""
    path = Path(text)
    if os.path.exists(path) and not os.path.isdir(path):  # noqa: PTH110, PTH112  # those of `Path` may raise
        return path
    if path.name == text and (name := text.removesuffix(".toml")) in known:
        return known[name]
    raise UserError(f"{text}: no such {what} file or name{nearest(path.stem, known)}; packaged: {', '.join(known)}")
