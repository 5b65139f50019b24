"""Sends an order to a run in progress from another process, and explains failures."""

from __future__ import annotations

import os
import time
from pathlib import Path

from testbed.control.line_socket import NoControllerError
from testbed.control.order_messages import Answer, Request
from testbed.control.order_socket import send, takes_orders
from testbed.errors import RunError, UserError
from testbed.run.newest import begin_key
from testbed.run.parts import has_journal
from testbed.run.reader import read_history

_LOOK_S = 0.1


def running_run(runs: Path) -> Path:
    """Return the latest run directory under `runs` whose controller takes orders."""
    try:
        with os.scandir(runs) as entries:
            found = [Path(entry.path) for entry in entries if entry.is_dir()]
    except OSError as error:
        raise UserError(f"{runs}: cannot read: {error.strerror}; expected the folder of run directories") from error
    for run in sorted(filter(has_journal, found), key=begin_key, reverse=True):
        if takes_orders(run):
            return run
    raise RunError(f"{runs}: no run there takes orders: expected a run whose replay is in progress")


def give(run: Path, request: Request) -> Answer:
    """Send an order to the controller of a run, and return its answer; for `stop` once the results are written.

    Raises `UserError` if `run` is no run directory, and `RunError` for a run that takes no orders, with the reason.
    """
    if not run.is_dir() or not has_journal(run):
        raise UserError(f"{run}: no run directory: expected one with events.jsonl, as `testbed run` writes it")
    try:
        answer = send(run, request)
    except NoControllerError as error:
        raise RunError(_why_not(run, error)) from error
    if answer.done and request.order == "stop":
        _wait_for_results(run, request.wait_s)
    return answer


def _why_not(run: Path, error: NoControllerError) -> str:
    history = read_history(run / "events.jsonl")
    if history.ended:
        return f"{run}: the run is over" + (f": {history.aborted}" if history.aborted else "")
    if history.replay is None:
        return f"{error}; its journal ends before the replay begins: a run takes orders from then on"
    return f"{error}; its journal does not say that the run is over"


def _wait_for_results(run: Path, most_s: float) -> None:
    """Wait until the controller has written summary.json, for `most_s` seconds at most."""
    ends_s = time.monotonic() + most_s
    while not (run / "summary.json").exists() and time.monotonic() < ends_s:
        time.sleep(_LOOK_S)
