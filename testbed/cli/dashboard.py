"""`testbed dashboard`: a run live in the browser."""

# ruff: noqa: PLC0415 - what the command needs is imported in it, so that --help is quick.

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from testbed.errors import UserError


@click.command(short_help="Show a run live in the browser.")
@click.argument("run", metavar="[RUN]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--runs", metavar="DIR", type=click.Path(path_type=Path), help="Follow the newest in here.  [default: runs]"
)
@click.option("--host", default="127.0.0.1", help="Where to listen; others than this machine's own need a token.")
@click.option("--port", type=click.IntRange(0, 65535), default=8765, help="0 picks a free one.")
@click.option(
    "--token-file", metavar="F", type=click.Path(path_type=Path), help="Ask for the token in F; made if F is not there."
)
@click.option("--json", "as_json", is_flag=True, help="Print the address as JSON.")
def dashboard(
    *, run: Path | None, runs: Path | None, host: str, port: int, token_file: Path | None, as_json: bool
) -> int:
    """Serve a page that shows a run live: jobs, Gantt chart, nodes, operations, reschedulings.

    It follows run directory RUN, or the newest in DIR, going over to the next when that begins. It is a process of its
    own: start and end it when you like, before, during or after a run; an open page reconnects by itself.

    Exit code 2: something in the input is wrong, or the port is in use; 130: ended by Ctrl-C or SIGTERM.

    \b
    Examples:
      testbed dashboard
      testbed dashboard runs/2026-11-20T10-31-07-quickstart --port 0
      testbed dashboard --host 0.0.0.0 --token-file ~/.dashboard-token
    """  # noqa: D301  # \b keeps click from wrapping the examples
    import asyncio
    import json
    import secrets
    from importlib.util import find_spec

    if find_spec("aiohttp") is None:
        raise UserError("the dashboard needs aiohttp: pip install 'dfrs-testbed[dashboard]'")
    if run is not None and runs is not None:
        raise UserError("RUN and --runs: expected one of them")
    if run is not None and not run.is_dir():
        raise UserError(f"{run}: expected a run directory, found {'a file' if run.exists() else 'nothing'}")

    from testbed.run.newest import newest_run
    from testbed.study.report.browser.guard import is_loopback, read_token
    from testbed.study.report.browser.serve import serve

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
