"""Execution of a campaign's runs, each by `testbed run` in a separate process, and their check for disturbances."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from testbed.errors import TestbedError
from testbed.host.interpreter import module_argv
from testbed.study.compare.live import read_live
from testbed.study.compare.quarantine import examine
from testbed.study.live_campaign.file import LiveCampaign
from testbed.study.live_campaign.plan import Case, PlannedRun, planned
from testbed.study.live_campaign.record import EndedRun, Record

Say = Callable[[str], None]


def work(campaign: LiveCampaign, cases: Sequence[Case], record: Record, say: Say) -> list[PlannedRun]:
    """Do the remaining runs of a campaign; return the runs for which the budget of repetitions was used up.

    A disturbed run is repeated at the end of its block, as long as no more than `redo` runs in total were left out,
    including those of earlier calls. Raises `KeyboardInterrupt` after an interrupt, once the current run has ended.
    """
    total = campaign.repeats * len(cases)
    most = total if campaign.redo is None else campaign.redo
    missing: list[PlannedRun] = []
    for order in planned(campaign, cases):
        left = [each for each in order if not record.done(each.key)]
        while left:
            again: list[PlannedRun] = []
            for each in left:
                done = sum(record.done(one.key) for block in planned(campaign, cases) for one in block)
                say(f"run {done + 1} of {total}: {each.key}")
                ended = run_one(each, record)
                record.add(ended)
                if not ended.counts:
                    say(f"left out: {'; '.join(ended.reasons)}")
                    (again if record.left_out <= most else missing).append(each)
            left = again
    return missing


def run_one(planned_run: PlannedRun, record: Record) -> EndedRun:
    """Do one run; return its record with the reasons to leave it out."""
    before = set(record.runs.iterdir())
    case = planned_run.case
    words = ["run", str(case.scenario), "--policy", case.policy, "--out", str(record.runs)]
    if case.seed is not None:
        words += ["--seed", str(case.seed)]
    code = _testbed(words)
    made = sorted(set(record.runs.iterdir()) - before)
    if not made:
        return EndedRun(planned_run.key, "", code, (f"testbed run ended with {code} and created no run directory",))
    return EndedRun(planned_run.key, made[-1].name, code, tuple(_reasons(made[-1])))


def _testbed(words: Sequence[str]) -> int:
    """Call `testbed`; an interrupt is forwarded to it, and raised here once it has ended."""
    with subprocess.Popen(module_argv("testbed", *words)) as process:  # noqa: S603  # our own command
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)  # the child may be in another process group, without this signal
            process.wait()
            raise


def _reasons(path: Path) -> list[str]:
    try:
        return [str(reason) for reason in examine(read_live(path)).reasons]
    except TestbedError as error:
        return [str(error)]
