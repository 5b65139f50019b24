"""Timelines of run directories."""

from __future__ import annotations

from pathlib import Path

from testbed.measure.rundir import read_json
from testbed.run.reader import read_history
from testbed.study.report.run.timeline import Timeline


def read_timeline(run: Path) -> Timeline:
    """Read the timeline of a run directory, whether the run is complete, aborted or still active."""
    timeline = Timeline.of_manifest(read_json(run / "manifest.json"))
    read_history(run / "events.jsonl", timeline.node_names, timeline.take)
    return timeline
