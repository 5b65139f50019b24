"""`testbed control`, `testbed node drain` and `testbed node return`: orders to a run that goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from testbed.cli.deferred import deferred
from testbed.control.order_messages import MOST_WAIT_S

_WAIT = click.option(
    "--wait-s", type=click.FloatRange(0.0, MOST_WAIT_S), default=600.0, metavar="S",
    help="How long the effect is waited for; the order stays in force after that.",
)  # fmt: skip
_RUNS = click.option(
    "--runs", type=click.Path(path_type=Path), default=Path("runs"), metavar="DIR",
    help="Where run directories are, if none is named.",
)  # fmt: skip
_RUN = click.option(
    "--run", type=click.Path(path_type=Path), metavar="RUN", help="The run.  [default: the newest that goes on]"
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
    """Give an order to the run in the directory RUN, by default to the newest one in DIR that goes on.

    pause: trace time stands still, and all running jobs are saved. continue: they are restored, then trace time goes
    on. stop: running jobs are saved, the results of what was measured are written, and `testbed run` ends with exit
    code 1. close: a served lab takes no more jobs, and ends when those that it has are done. A pause is no
    rescheduling, and reported apart.

    The command answers when the effect is there; repeated orders change nothing. Exit code 0: the effect is there; 1:
    it is not, and why, or the run is over, or its controller is gone; 2: something in the input is wrong.
    """


def _of_node(order: str, short: str) -> Callable[[Callable[..., object]], click.Command]:
    """Return the decorator of a command of `testbed node` that gives an order about one node."""

    def declare(callback: Callable[..., object]) -> click.Command:
        for parameter in (_JSON, _WAIT, _RUNS, _RUN, click.argument("name", metavar="NODE")):
            callback = parameter(callback)
        epilog = f"\b\nExample:\n  testbed node {order} node-a --run runs/NAME"
        return click.command(order, short_help=short, epilog=epilog)(callback)

    return declare


@_of_node("drain", "Keep guests off a node of a run that goes on.")
@deferred
def drain() -> None:
    """Keep guests off NODE in a run that goes on; jobs there are moved or saved as the policy decides.

    Jobs that fit on no other nodes wait until it is returned. The command answers when the node holds no guest. Exit
    code 0: so it is; 1: it is not, and why, or the run is over, or its controller is gone; 2: the input is wrong.
    """


@_of_node("return", "Give a drained node back to a run that goes on.")
@deferred
def return_() -> None:
    """Give a drained NODE back to a run that goes on: the policy may place jobs there again.

    Exit code 0: so it is; 1: the run is over, or its controller is gone; 2: the input is wrong.
    """
