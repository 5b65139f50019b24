"""Write the commit of a checkout into its wheel and its sdist, so that runs of the installed package can name it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):
    """Adds `testbed/commit`: the commit, followed by `dirty` if tracked files differ from it."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the file; a build outside of a checkout keeps the file of the sdist."""
        del version
        root = Path(self.root)
        text = self._commit(root)
        if text is None:
            return
        target = self._target()
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="ascii")
        build_data["force_include"][str(target)] = "testbed/commit"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the file from the folder of built packages."""
        del version, build_data, artifact_path
        self._target().unlink(missing_ok=True)

    def _target(self) -> Path:
        return Path(self.directory) / "commit"

    @staticmethod
    def _commit(root: Path) -> str | None:
        if not (root / ".git").exists():
            return None
        try:
            commit, changes = (
                subprocess.run(
                    ["git", "-C", str(root), *words], capture_output=True, text=True, check=True, timeout=60
                ).stdout.strip()
                for words in (
                    ("rev-parse", "HEAD"),
                    ("--no-optional-locks", "status", "--porcelain", "--", "testbed", "node_agent", "scenarios"),
                )
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return f"{commit}{' dirty' if changes else ''}\n"
