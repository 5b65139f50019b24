"""Run directories for tests of the dashboard: a dry run in virtual time, and one that grows like a live run."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

from testbed.control.session import run_session
from testbed.lab.bring_up import dry_lab
from testbed.lab.virtual_time import run_in_virtual_time
from testbed.scenario.jobs import load_jobs
from testbed.scenario.schema import load_scenario
from testbed.scheduling.policies.catalogue import parse

SCENARIO = Path(__file__).parents[3] / "scenarios" / "quickstart.toml"


class _Nobody:
    """A watcher that does nothing."""

    def line(self, trace_s: float, text: str) -> None:
        pass

    def show(self, snapshot: object) -> None:
        pass


def rehearse(path: Path) -> Path:
    """Make a dry run of the quickstart, two nodes and twelve jobs, and return its run directory `path`."""
    scenario = load_scenario(SCENARIO)
    policy = parse(scenario.policy[0], scenario.period_s)
    jobs = load_jobs(scenario, SCENARIO)
    run_in_virtual_time(run_session(scenario, policy, jobs, path, dry_lab, _Nobody()))
    return path


class GrowingRun:
    """Writes `target` as the controller wrote `source`, up to a second of its clock at a time.

    Unix times are moved so that the run is at second `now_t_s` at this moment.
    """

    def __init__(self, source: Path, target: Path, now_t_s: float = 0.0) -> None:
        manifest = json.loads((source / "manifest.json").read_text())
        anchor_ns = manifest["clocks"]["anchor_unix_ns"]
        moved_ns = time.time_ns() - int(now_t_s * 1e9) - anchor_ns
        manifest["clocks"]["anchor_unix_ns"] = anchor_ns + moved_ns
        manifest["run"] = target.name
        self._manifest = json.dumps(manifest)
        self._replay_s = manifest["clocks"]["replay_begin_s"]
        self.journal: list[tuple[float, str]] = [
            (float(json.loads(line)["t_s"]), line) for line in (source / "events.jsonl").read_text().splitlines()
        ]
        self.points = []
        for line in (source / "points.lp").read_text().splitlines():
            head, time_ns = line.rsplit(" ", 1)
            self.points.append(((int(time_ns) - anchor_ns) / 1e9, f"{head} {int(time_ns) + moved_ns}"))
        self.target = target
        self.end_s = self.journal[-1][0]
        target.mkdir(parents=True)

    def second_of(self, pattern: str) -> float:
        """Return when the first entry that matches was written."""
        return next(at_s for at_s, line in self.journal if re.search(pattern, line))

    def advance_past(self, pattern: str) -> float:
        """Append all up to the first entry of the journal that matches, and return its second.

        Operations of a dry run take no time, so this is the only way to see one under way.
        """
        at = next(index for index, (_, line) in enumerate(self.journal) if re.search(pattern, line))
        later = self.journal[at + 1 :]
        del self.journal[at + 1 :]
        at_s = self.journal[-1][0]
        self.advance(at_s)
        self.journal[:] = later
        return at_s

    def advance(self, to_s: float) -> None:
        """Append all entries that were written up to a second of the run's clock."""
        if to_s >= self._replay_s and not (self.target / "manifest.json").exists():
            (self.target / "manifest.json").write_text(self._manifest)
        for name, lines in (("points.lp", self.points), ("events.jsonl", self.journal)):
            due = [line for at_s, line in lines if at_s <= to_s]
            lines[:] = [each for each in lines if each[0] > to_s]
            with (self.target / name).open("a", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in due)
