"""`testbed dashboard`: live view of a run in the browser."""

from __future__ import annotations

import asyncio
import json
import secrets
from functools import partial
from pathlib import Path

import click

from testbed.errors import UserError
from testbed.run.newest import newest_run

try:
    from testbed.study.report.browser.guard import is_loopback, read_token
    from testbed.study.report.browser.serve import serve
except ImportError as error:
    raise UserError("the dashboard needs aiohttp: pip install 'dfrs-testbed[dashboard]'") from error


def dashboard(
    *, run: Path | None, runs: Path | None, host: str, port: int, token_file: Path | None, as_json: bool
) -> int:
    if run is not None and runs is not None:
        raise UserError("RUN and --runs: expected one of them")
    if run is not None and not run.is_dir():
        raise UserError(f"{run}: expected a run directory, found {'a file' if run.exists() else 'nothing'}")

    token = None
    if token_file is not None:
        token = read_token(token_file)
    elif not is_loopback(host):
        token = secrets.token_urlsafe(24)
    place = Path("runs") if runs is None else runs

    def tell(url: str) -> None:
        what = str(run) if run is not None else f"the newest run in {place}"
        click.echo(json.dumps({"url": url, "follows": what}) if as_json else f"{url}\nfollows {what}; Ctrl-C ends it")

    choose = partial(newest_run, place) if run is None else lambda: run
    asyncio.run(serve(choose, host, port, token, tell))
    return 130
