"""A limit that an agent reaches during a run is in the run's journal, and a line on the display."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.control.rehearsal import Watcher, five_jobs, rehearse

from node_agent.bounds import Bounds


def test_a_bound_that_is_reached_is_journalled_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: dict[int, int] = {}

    def look(self: Bounds, now_s: float) -> None:
        looks[id(self)] = looks.get(id(self), 0) + 1
        if looks[id(self)] == 5 and len(looks) == 2:
            self._say("memory", "reached", 530.0, 512)

    monkeypatch.setattr(Bounds, "look", look)
    watcher = Watcher()
    result, journal = rehearse(tmp_path, five_jobs(), watcher=watcher)
    entries = [entry for entry in journal if entry["kind"] == "limit"]
    assert entries
    for entry in entries:
        assert entry["node"] in {"node-0", "node-1"}
        told = {key: entry[key] for key in ("what", "state", "value_mib", "bound_mib")}
        assert told == {"what": "memory", "state": "reached", "value_mib": 530, "bound_mib": 512}
    lines = [line for line in watcher.lines if "more than its bound of 512 MiB" in line]
    assert len(lines) == len(entries)
    assert result.summary["done"] == 5
