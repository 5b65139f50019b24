"""`testbed runs`: a catalogue of run directories."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred

_FOLDER = click.option(
    "--runs", "folder", type=click.Path(path_type=Path), default=Path("runs"), help="Folder of run directories."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")


@click.group()
def runs() -> None:
    """List, describe, compare and remove runs. The catalogue is read from the run directories each time."""


@runs.command("list", epilog="\b\nExample:\n  testbed runs list --scenario quickstart --tag paper")
@_FOLDER
@click.option("--scenario", help="Only runs of this scenario.")
@click.option("--policy", help="Only runs of this policy.")
@click.option("--tag", help="Only runs with this tag.")
@_JSON
@deferred
def list_runs() -> None:
    """List runs, the oldest first: state, jobs, mean and maximum stretch, tags."""


@runs.command("show", epilog="\b\nExample:\n  testbed runs show 2026-11-20T10")
@_FOLDER
@_JSON
@click.argument("run")
@deferred
def show_run() -> None:
    """Show one run: scenario, policy, code, figures, tags and note. RUN is a path, a name, or its beginning."""


@runs.command(
    "tag",
    epilog="\b\nExamples:\n  testbed runs tag 2026-11-20T10 paper\n  testbed runs tag 2026-11-20T10 paper --remove",
)
@_FOLDER
@click.option("--remove", is_flag=True, help="Remove the tags.")
@click.argument("run")
@click.argument("tags", nargs=-1, required=True)
@deferred
def tag_run() -> None:
    """Add TAGS to a run, or remove them. `testbed runs prune` keeps runs with tags."""


@runs.command("note", epilog='\b\nExample:\n  testbed runs note 2026-11-20T10 "before the new kernel"')
@_FOLDER
@click.argument("run")
@click.argument("text")
@deferred
def note_run() -> None:
    """Set the note of a run; an empty TEXT removes it."""


@runs.command("diff", epilog="\b\nExample:\n  testbed runs diff 2026-11-20T10 2026-11-21T08")
@_FOLDER
@_JSON
@click.argument("one")
@click.argument("other")
@deferred
def diff_runs() -> None:
    """Show in which keys the manifests and summaries of two runs differ: scenario, code, versions, nodes, figures.

    Names, tags and clocks of the runs are not compared. Exit code 0: no difference; 1: differences.
    """


@runs.command("prune", epilog="\b\nExample:\n  testbed runs prune --keep 10 --older-than 30 --yes")
@_FOLDER
@click.option(
    "--keep", type=click.IntRange(0), help="Number of newest runs that are done to keep of each scenario and policy."
)
@click.option("--older-than", type=click.FloatRange(0), metavar="DAYS", help="Only runs that are older.")
@click.option("--failed", is_flag=True, help="Only failed runs.")
@click.option("--yes", is_flag=True, help="Remove them; without it they are only listed.")
@_JSON
@deferred
def prune_runs() -> None:
    """Remove runs. Runs with tags, unfinished runs, and runs with damaged files always stay."""


@runs.command("trend", epilog="\b\nExample:\n  testbed runs trend --scenario quickstart --metric mean_stretch")
@_FOLDER
@click.option("--scenario", required=True, help="The scenario.")
@click.option("--policy", help="Only runs of this policy.")
@click.option("--metric", default="mean_stretch", help="A metric of summary.json.")
@_JSON
@deferred
def trend_of_runs() -> None:
    """Show a metric of complete runs over time, by policy, with the commit of each run."""
