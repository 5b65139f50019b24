"""`testbed control`, `testbed node drain` and `testbed node return`: orders to a run in progress."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import click

from testbed.control.order_client import give, running_run
from testbed.control.order_messages import Answer, OrderName, Request
from testbed.errors import UserError, nearest, printable

_ORDERS = ("pause", "continue", "stop", "close")


def control(*, words: tuple[str, ...], runs: Path, wait_s: float, as_json: bool) -> int:
    *paths, order = words or ("",)
    if order not in _ORDERS or len(paths) > 1:
        found = " ".join(words) or "nothing"
        hint = nearest(order, _ORDERS, 1)
        raise UserError(f"expected [RUN] and one of {', '.join(_ORDERS)}, found {found}{hint}")
    run = Path(paths[0]) if paths else None
    return _give(run, runs, Request(cast("OrderName", order), wait_s=wait_s), as_json=as_json)


def drain(*, name: str, run: Path | None, runs: Path, wait_s: float, as_json: bool) -> int:
    return _give(run, runs, Request("drain", node=name, wait_s=wait_s), as_json=as_json)


def return_(*, name: str, run: Path | None, runs: Path, wait_s: float, as_json: bool) -> int:
    return _give(run, runs, Request("return", node=name, wait_s=wait_s), as_json=as_json)


def _give(run: Path | None, runs: Path, request: Request, *, as_json: bool) -> int:
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
