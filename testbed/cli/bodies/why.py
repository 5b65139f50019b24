"""`testbed why`: the history of one job of a run, with the reason of each event."""

from __future__ import annotations

import json
from pathlib import Path

import click

from testbed.study.report.run.job_story_data import as_data
from testbed.study.report.run.job_story_reader import read_job_report
from testbed.study.report.run.job_story_text import lines


def why(*, run: Path, job: int, as_json: bool) -> None:
    told = read_job_report(run, job)
    if as_json:
        click.echo(json.dumps(as_data(told), indent=2))
        return
    for line in lines(told):
        click.echo(line)
