"""`testbed dashboard`: a run in the browser while it lasts."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred


@click.command(short_help="Show a run in the browser while it lasts.")
@click.argument("run", metavar="[RUN]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--runs", metavar="DIR", type=click.Path(path_type=Path), help="Follow the newest run in DIR.  [default: runs]"
)
@click.option("--host", default="127.0.0.1", help="Address to listen on; other than loopback it needs --token-file.")
@click.option("--port", type=click.IntRange(0, 65535), default=8765, help="Port to listen on; 0 chooses a free port.")
@click.option(
    "--token-file",
    metavar="F",
    type=click.Path(path_type=Path),
    help="Require the token in file F, which is created if missing.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the address as JSON.")
@deferred
def dashboard() -> None:
    """Serve a page that shows a run while it lasts: jobs, Gantt chart, nodes, operations, reschedulings.

    The page follows the run directory RUN, or else the newest run in DIR, and changes to the next run when one begins.
    The dashboard is a separate process: start and stop it before, during or after a run. An open page reconnects by
    itself.

    Exit code 2: the input is wrong, or the port is in use; 130: ended by Ctrl-C or SIGTERM.

    \b
    Examples:
      testbed dashboard
      testbed dashboard runs/2026-11-20T10-31-07-quickstart --port 0
      testbed dashboard --host 0.0.0.0 --token-file ~/.dashboard-token
    """  # noqa: D301  # \b keeps click from wrapping the examples
