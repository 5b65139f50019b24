"""`testbed check`."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option(
    "--lab",
    required=True,
    type=_FILE,
    metavar="LAB",
    help="A scenario file, or a packaged name; a box must be up.",
)
@click.option("--nodes", default="", metavar="A,B", help="Check only these nodes.  [default: all]")
@click.option(
    "-k",
    "keyword",
    default="",
    metavar="WORDS",
    help="Only checks whose names match, as of pytest: -k 'caps or image'.",
)
@click.option(
    "--calibration", type=_FILE, metavar="FILE", help="What `testbed calibrate` wrote, for checks that ask for it."
)
@click.option(
    "--references",
    type=_FILE,
    metavar="FILE",
    help="Expected figures, by machine.  [default: references.toml beside LAB; of a name, in the current folder]",
)
@click.option("--update-references", is_flag=True, help="Write what is measured as the references of this machine.")
@click.option(
    "--fresh-guests",
    type=click.IntRange(min=5),
    default=5,
    metavar="N",
    help="Fresh guests that a figure is measured with.",
)
@click.option(
    "--junit", type=_FILE, metavar="FILE", help="Write JUnit XML, with machine, versions, commit and figures."
)
@click.option("--list", "list_only", is_flag=True, help="List the checks; open no lab.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; pytest's own lines go to standard error.")
@click.argument("checks", nargs=-1, type=click.Path(exists=True, path_type=Path))
@deferred
def check() -> None:
    """Check the hypervisors of a lab: with the packaged checks, or with the CHECKS (files, folders) that are given.

    A figure that is worse than its reference fails a check only if the interval of its median is, and that of a second
    run, too; else it is told as UNCONFIRMED. A machine without references is measured, and nothing is judged.

    Exit code 0: nothing failed; 1: a check failed; 2: something in the input is wrong, or no check was chosen; 130:
    interrupted.

    \b
    Examples:
      testbed check --lab quickstart
      testbed check --lab lab.toml -k "memory or caps" --junit checks.xml
      testbed check --lab lab.toml --update-references
    """  # noqa: D301  # \b keeps click from wrapping the examples
