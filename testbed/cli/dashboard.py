"""`testbed dashboard`: a run live in the browser."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred


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
@deferred
def dashboard() -> None:
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
