"""`testbed control`, `testbed node drain` and `testbed node return`: orders to an active run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from testbed.cli.deferred import deferred
from testbed.control.order_messages import MOST_WAIT_S

_WAIT = click.option(
    "--wait-s", type=click.FloatRange(0.0, MOST_WAIT_S), default=600.0, metavar="S",
    help="How long to wait for the effect; the order stays in force afterwards.",
)  # fmt: skip
_RUNS = click.option(
    "--runs", type=click.Path(path_type=Path), default=Path("runs"), metavar="DIR",
    help="Folder of run directories, if none is named.",
)  # fmt: skip
_RUN = click.option(
    "--run", type=click.Path(path_type=Path), metavar="RUN", help="The run.  [default: the newest active run]"
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON on standard output.")


@click.command(
    short_help="Pause, continue or stop a run from another terminal.",
    epilog="\b\nExamples:\n"
    "  testbed control pause\n"
    "  testbed control runs/2026-11-20T10-31-07-quickstart continue\n"
    "  testbed control stop --json",
)
@click.argument("words", metavar="[RUN] pause|continue|stop|close", nargs=-1)
@_RUNS
@_WAIT
@_JSON
@deferred
def control() -> None:
    """Give an order to the run in directory RUN, by default to the newest active run in DIR.

    pause: trace time stops, and all running jobs are saved. continue: the jobs are restored, then trace time continues.
    stop: running jobs are saved, results so far are written, and `testbed run` ends with exit code 1. close: a served
    lab accepts no more jobs, and ends after the last one. A pause is no rescheduling, and is reported apart.

    The command waits for the effect; repeated orders change nothing. Exit code 0: the order took effect; 1: it did not,
    the run has ended, or its controller is gone; 2: the input is wrong.
    """


def _of_node(order: str, short: str) -> Callable[[Callable[..., object]], click.Command]:
    """Return the decorator of a command of `testbed node` that gives an order about one node."""

    def declare(callback: Callable[..., object]) -> click.Command:
        for parameter in (_JSON, _WAIT, _RUNS, _RUN, click.argument("name", metavar="NODE")):
            callback = parameter(callback)
        epilog = f"\b\nExample:\n  testbed node {order} node-a --run runs/NAME"
        return click.command(order, short_help=short, epilog=epilog)(callback)

    return declare


@_of_node("drain", "Keep guests off a node of an active run.")
@deferred
def drain() -> None:
    """Keep guests off NODE in an active run; the policy decides whether jobs on the node are moved or saved.

    Jobs that fit on no other nodes wait until the node is returned. The command waits until the node has no guests.
    Exit code 0: it has none; 1: it has some, the run has ended, or its controller is gone; 2: the input is wrong.
    """


@_of_node("return", "Return a drained node to an active run.")
@deferred
def return_() -> None:
    """Return a drained NODE to an active run: the policy may place jobs on it again.

    Exit code 0: the node was returned; 1: the run has ended, or its controller is gone; 2: the input is wrong.
    """
