"""The data for the report page of a run, loaded from its directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.errors import UserError
from testbed.measure.rundir import read_json
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.policies.view import SharingPolicy
from testbed.study.report.run.facts import RunFacts, read_facts
from testbed.study.report.run.schedule import Schedule
from testbed.study.report.run.timeline import Timeline

if TYPE_CHECKING:
    import polars as pl

# Samples of nodes and guests are most of a run's points; only figures of shares need them, so others do not load them.
_MEASUREMENTS = ("cap", "action", "decision", "superstep", "bus")
_OF_SHARES = (*_MEASUREMENTS, "guest", "share_transfer", "node")


@dataclass(frozen=True, slots=True)
class RunData:
    """A run: its facts, its schedule, and its points by measurement; `trouble` lists what could not be read."""

    facts: RunFacts
    schedule: Schedule
    points: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    trouble: tuple[str, ...] = ()


def read_record(path: Path) -> RunData:
    """Read a run directory without its points, in one pass over its journal; the run may be incomplete.

    Raises `UserError` as `read_facts` does.
    """
    if not path.is_dir():
        raise UserError(f"{path}: no such run directory")
    manifest = read_json(path / "manifest.json") if (path / "manifest.json").exists() else {}
    timeline = Timeline.of_manifest(manifest) if {"clocks", "nodes"} <= manifest.keys() else Timeline()
    facts = read_facts(path, timeline.take)
    return RunData(facts, timeline.schedule())


def with_points(record: RunData) -> RunData:
    """Return the data of a run with the points that figures need.

    Points that cannot be read are left out and reported in `trouble`.
    """
    from testbed.measure.frames import load_points  # noqa: PLC0415  # polars is an extra, and slow to import

    try:
        points = load_points(record.facts.path, _OF_SHARES if has_shares(record.facts.policy) else _MEASUREMENTS)
    except UserError as error:
        return replace(record, trouble=(f"Figures of points are missing: {error}",))
    return replace(record, points=points, schedule=_with_moves(record, points))


def _with_moves(record: RunData, points: Mapping[str, pl.DataFrame]) -> Schedule:
    """Return the schedule with the moves of shares, if there are any."""
    from testbed.study.report.run.share_moves import measured_moves  # noqa: PLC0415  # as above

    facts, transfers = record.facts, points.get("share_transfer")
    if transfers is None or facts.anchor_ns is None:
        return record.schedule
    zero_ns = facts.anchor_ns + int(facts.replay_begin_s * 1e9)
    return replace(record.schedule, share_moves=measured_moves(transfers, zero_ns))


def has_shares(policy: str) -> bool:
    """Return whether jobs compete by shares under the policy of this name."""
    try:
        return isinstance(parse(policy), SharingPolicy)
    except UserError:  # a plug-in that is not installed here
        return False


def load_run_data(path: Path) -> RunData:
    """Load a run directory with its points; the run may be incomplete.

    Raises `UserError` if journal or manifest cannot be read.
    """
    return with_points(read_record(path))
