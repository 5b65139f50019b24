"""`testbed check`."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("scenario", type=_FILE)
@click.option("--nodes", default="", metavar="A,B", help="Check only these nodes.  [default: all]")
@click.option(
    "-k",
    "keyword",
    default="",
    metavar="WORDS",
    help="Run only checks whose names match, as for pytest: -k 'caps or image'.",
)
@click.option(
    "--calibration", type=_FILE, metavar="FILE", help="Result of `testbed calibrate`, for checks that need it."
)
@click.option(
    "--references",
    type=_FILE,
    metavar="FILE",
    help="Expected figures by machine.  [default: references.toml beside SCENARIO; here, for a packaged one]",
)
@click.option("--update-references", is_flag=True, help="Write the measured figures as the references of this machine.")
@click.option(
    "--fresh-guests",
    type=click.IntRange(min=5),
    default=5,
    metavar="N",
    help="Number of new guests that each figure is measured with.",
)
@click.option(
    "--junit", type=_FILE, metavar="FILE", help="Write JUnit XML, with machine, versions, commit and figures."
)
@click.option("--list", "list_only", is_flag=True, help="List the checks; open no lab.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; the output of pytest goes to standard error.")
@click.argument("checks", nargs=-1, type=click.Path(exists=True, path_type=Path))
@deferred
def check() -> None:
    """Check the hypervisors of a lab with the packaged checks, or with the given CHECKS (files or folders).

    SCENARIO is a scenario file, or the name of a packaged scenario, of which only the lab is used. A lab in a box must
    be up.

    A figure that is worse than its reference fails a check only if the confidence interval of its median is worse too,
    in this run and in a second run; else it is reported as UNCONFIRMED. On a machine without references the figures are
    measured, and no figure is judged.

    Exit code 0: no check failed; 1: a check failed; 2: the input is wrong, or no check was selected; 130: interrupted.

    \b
    Examples:
      testbed check quickstart
      testbed check lab.toml -k "memory or caps" --junit checks.xml
      testbed check lab.toml --update-references
    """  # noqa: D301  # \b keeps click from wrapping the examples
