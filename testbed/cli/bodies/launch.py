"""Runs sessions in an event loop, with signal handlers and a display."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import threading
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console

from testbed.cli.bodies.interrupts import run_interruptible
from testbed.control.admission import check_events, check_jobs
from testbed.control.lost_run import load_lost_run
from testbed.control.session import RunResult, resume_session, run_session
from testbed.errors import FailureCode, UserError
from testbed.lab.bring_up import dry_lab, live_lab
from testbed.lab.local_agents import check_drivers
from testbed.measure.run_lock import RunLock
from testbed.scenario.schema import Scenario
from testbed.scheduling.policies.loading import can_load, use_compiled
from testbed.scheduling.policies.view import Policy
from testbed.scheduling.workload.jobs import Job
from testbed.study.report.terminal.console import wide_console
from testbed.study.report.terminal.live import PlainDisplay, display_for
from testbed.study.report.terminal.text import print_comparison, print_run


def run_path(out: Path, name: str) -> Path:
    """Return the path of a new run directory: time and scenario, and a number if this name is taken."""
    stem = f"{datetime.now().astimezone():%Y-%m-%dT%H-%M-%S}-{name}"
    path = out / stem
    number = 2
    while path.exists():
        path = out / f"{stem}-{number}"
        number += 1
    return path


def launch(
    scenario: Scenario,
    policies: Sequence[Policy],
    jobs: Sequence[Job],
    out: Path,
    *,
    dry_run: bool,
    as_json: bool,
) -> list[RunResult]:
    """Run the jobs under each policy, one after the other, and print tables (or JSON); returns the results."""
    console = wide_console(stderr=as_json)
    check_drivers(scenario)
    for policy in policies:
        check_jobs(jobs, policy, scenario)
        if dry_run:
            check_events(jobs, policy, scenario)
    results = []
    with contextlib.ExitStack() as stack:
        if not dry_run:
            stack.callback(_load(policies).join)
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dfrs-dry-"))) if dry_run else out
        for policy in policies:
            results.append(_one(scenario, policy, jobs, run_path(place, scenario.name), console, dry_run=dry_run))
            if not as_json:
                print_run(results[-1].path, console)
        if len(results) > 1 and not as_json:
            print_comparison([result.path for result in results], console)
        if as_json:
            json.dump(
                [{"run": None if dry_run else str(result.path), **result.summary} for result in results],
                sys.stdout,
                indent=2,
            )
            sys.stdout.write("\n")
    if not dry_run:
        for result in results:
            console.print(f"run directory: {result.path}", markup=False, highlight=False, soft_wrap=True)
    return results


def _load(policies: Sequence[Policy]) -> threading.Thread:
    """Start a thread that loads the cached machine code of policies; return it.

    Decisions do not wait for this thread. A live run compiles nothing: that would take a core of a node.
    """

    def load() -> None:
        for policy in policies:
            if can_load(policy):
                use_compiled(policy)

    loading = threading.Thread(target=load, name="machine code of policies")
    loading.start()
    return loading


def launch_served(scenario: Scenario, policy: Policy, out: Path, *, as_json: bool) -> RunResult:
    """Serve a lab until its operator closes it, and print its tables (or JSON); returns the result."""
    console = wide_console(stderr=as_json)
    check_drivers(scenario)
    path = run_path(out, scenario.name)
    with contextlib.ExitStack() as stack:
        stack.callback(_load([policy]).join)
        title = f"{scenario.name}  {policy.name}"
        try:
            with display_for(console, title) as display:
                session = run_session(scenario, policy, [], path, live_lab, display, served=True)
                result = run_interruptible(session, console)
        except KeyboardInterrupt:
            if path.exists():
                console.print(f"interrupted; measured data is in {path}", markup=False, soft_wrap=True)
            raise
    _print(result, console, as_json=as_json)
    return result


def launch_resumed(path: Path, *, as_json: bool) -> RunResult:
    """Resume a run whose controller was lost, and print its tables (or JSON); returns the result."""
    console = wide_console(stderr=as_json)
    if not path.is_dir():
        raise UserError(f"{path}: no such folder: expected a run directory")
    try:
        lock = RunLock(path)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}: expected a run directory that this user may write in") from error
    try:
        lost = load_lost_run(path)
        check_drivers(lost.scenario)
        _load([lost.policy])
        with display_for(console, f"{lost.scenario.name}  {lost.policy.name}") as display:
            result = run_interruptible(resume_session(lost, lock, live_lab, display), console)
    except KeyboardInterrupt:
        console.print(f"interrupted; measured data is in {path}", markup=False, soft_wrap=True)
        raise
    finally:
        lock.release()
    _print(result, console, as_json=as_json)
    return result


def all_well(result: RunResult) -> bool:
    """Whether every job is done, or was deleted by a user."""
    codes = result.summary["failure_codes"]
    deleted = list(codes.values()).count(FailureCode.DELETED) if isinstance(codes, dict) else 0
    done = result.summary["done"]
    return isinstance(done, int) and done + deleted == result.summary["jobs"]


def _print(result: RunResult, console: Console, *, as_json: bool) -> None:
    if as_json:
        json.dump([{"run": str(result.path), **result.summary}], sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        print_run(result.path, console)
        console.print(f"run directory: {result.path}", markup=False, highlight=False, soft_wrap=True)


def _one(
    scenario: Scenario, policy: Policy, jobs: Sequence[Job], path: Path, console: Console, *, dry_run: bool
) -> RunResult:
    title = f"{scenario.name}  {policy.name}"
    with PlainDisplay(console) if dry_run else display_for(console, title) as display:
        try:
            return run_interruptible(
                run_session(scenario, policy, jobs, path, dry_lab if dry_run else live_lab, display),
                console,
                virtual_time=dry_run,
            )
        except KeyboardInterrupt:
            if path.exists() and not dry_run:
                console.print(f"interrupted; measured data is in {path}", markup=False, soft_wrap=True)
            raise
