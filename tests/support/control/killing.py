"""A recorder for tests: it kills the controller, or an agent, at an entry of the journal that the environment names."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil


def agents(words: list[object], processes: Iterable[psutil.Process]) -> Iterator[psutil.Process]:
    """Yield the processes of agents that have all of these words in their command lines."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if {"node_agent", *words} <= set(process.cmdline()):
                yield process


class Killing:
    """Kills this process at the `nth` entry that has the keys and values of DFRS_KILL_AT, a JSON object.

    With `agent_of` it kills the agent of that node instead, which this process has started. With `lab` in addition, it
    kills the node's agent in that lab in a box.
    """

    def __init__(self) -> None:
        self._wanted: dict[str, object] = json.loads(os.environ.get("DFRS_KILL_AT", "{}"))
        self._left = int(str(self._wanted.pop("nth", 1)))
        self._words = [self._wanted.pop(name) for name in ("agent_of", "lab") if name in self._wanted]

    def open(self, path: Path, manifest: dict[str, object]) -> None:
        """See `testbed.measure.recorders`."""

    def journal(self, entry: dict[str, object]) -> None:
        """See `testbed.measure.recorders`."""
        if self._wanted and self._wanted.items() <= entry.items():
            self._left -= 1
            if self._left == 0:
                self._victim().kill()

    def _victim(self) -> psutil.Process:
        own = psutil.Process()
        if not self._words:
            return own
        return next(agents(self._words, own.children() if len(self._words) == 1 else psutil.process_iter()))

    def point(self, *point: object) -> None:
        """See `testbed.measure.recorders`."""

    def close(self) -> None:
        """See `testbed.measure.recorders`."""
