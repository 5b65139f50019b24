"""`testbed control`, `testbed node drain` and `testbed node return`: orders to a run that goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import click

from testbed.control.order_messages import MOST_WAIT_S, Answer, OrderName, Request
from testbed.errors import UserError, nearest, printable

_ORDERS = ("pause", "continue", "stop")
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
@click.argument("words", metavar="[RUN] pause|continue|stop", nargs=-1)
@_RUNS
@_WAIT
@_JSON
def control(*, words: tuple[str, ...], runs: Path, wait_s: float, as_json: bool) -> int:
    """Give an order to the run in the directory RUN, by default to the newest one in DIR that goes on.

    pause: trace time stands still, and all running jobs are saved. continue: they are restored, then trace time goes
    on. stop: running jobs are saved, the results of what was measured are written, and `testbed run` ends with exit
    code 1. A pause is no rescheduling, and reported apart.

    The command answers when the effect is there; repeated orders change nothing. Exit code 0: the effect is there; 1:
    it is not, and why, or the run is over, or its controller is gone; 2: something in the input is wrong.
    """
    *paths, order = words or ("",)
    if order not in _ORDERS or len(paths) > 1:
        found = " ".join(words) or "nothing"
        hint = nearest(order, _ORDERS, 1)
        raise UserError(f"expected [RUN] and one of {', '.join(_ORDERS)}, found {found}{hint}")
    run = Path(paths[0]) if paths else None
    return _give(run, runs, Request(cast("OrderName", order), wait_s=wait_s), as_json=as_json)


def _node_command(order: OrderName, short: str, text: str) -> click.Command:
    """Return a command of `testbed node` that gives an order about one node."""

    @click.command(
        order, short_help=short, help=text, epilog=f"\b\nExample:\n  testbed node {order} node-a --run runs/NAME"
    )
    @click.argument("name", metavar="NODE")
    @_RUN
    @_RUNS
    @_WAIT
    @_JSON
    def command(*, name: str, run: Path | None, runs: Path, wait_s: float, as_json: bool) -> int:
        return _give(run, runs, Request(order, node=name, wait_s=wait_s), as_json=as_json)

    return command


drain = _node_command(
    "drain",
    "Keep guests off a node of a run that goes on.",
    """Keep guests off NODE in a run that goes on; jobs there are moved or saved as the policy decides.

    Jobs that fit on no other nodes wait until it is returned. The command answers when the node holds no guest. Exit
    code 0: so it is; 1: it is not, and why, or the run is over, or its controller is gone; 2: the input is wrong.
    """,
)
return_ = _node_command(
    "return",
    "Give a drained node back to a run that goes on.",
    """Give a drained NODE back to a run that goes on: the policy may place jobs there again.

    Exit code 0: so it is; 1: the run is over, or its controller is gone; 2: the input is wrong.
    """,
)


def _give(run: Path | None, runs: Path, request: Request, *, as_json: bool) -> int:
    from testbed.control.order_client import give, running_run  # noqa: PLC0415  # --help stays quick

    place = run or running_run(runs)
    answer = give(place, request)
    if as_json:
        click.echo(json.dumps(_as_data(place, request, answer), indent=2))
    elif answer.done:
        already = "" if answer.changed else " (already)"
        click.echo(f"{place}: {printable(answer.text)}{already}")
    else:
        click.echo(f"testbed: {place}: {printable(answer.text)}", err=True)
    return 0 if answer.done else 2 if answer.mistaken else 1


def _as_data(run: Path, request: Request, answer: Answer) -> dict[str, object]:
    return {
        "run": str(run), "order": request.order, "node": request.node, "done": answer.done, "changed": answer.changed,
        "state": answer.state, "jobs": list(answer.jobs), "text": answer.text,
    }  # fmt: skip
