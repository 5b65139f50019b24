"""Traces of the jobs that a real site ran, from the accounting of its batch system."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from testbed.errors import UserError, nearest
from testbed.scheduling.workload.accounting import SiteNode, SiteRecords, trace_jobs
from testbed.scheduling.workload.accounting_values import Clock, find_clock
from testbed.scheduling.workload.files import read_text
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.qacct import read_qacct
from testbed.scheduling.workload.sacct import read_sacct

SOURCES: dict[str, Callable[[str, str, Clock], SiteRecords]] = {"sacct": read_sacct, "qacct": read_qacct}


def read_accounting(path: Path, source: str, node: SiteNode, timezone: str | None = None) -> list[Job]:
    """Return the jobs that a site ran, the first submitted at 0 s, from a file of any name; `.gz` is unpacked.

    Raises UserError for an unknown source or time zone and when the file cannot be read; InputError, naming file and
    line, for text that is not accounting of this source.
    """
    clock = find_clock(timezone)
    if source not in SOURCES:
        raise UserError(f"--from {source}: expected {' or '.join(SOURCES)}{nearest(source, SOURCES)}")
    return accounting_jobs(read_text(path), str(path), source, node, clock)


def accounting_jobs(text: str, name: str, source: str, node: SiteNode, clock: Clock) -> list[Job]:
    """Return the jobs from the text of accounting; `name` stands for the file in errors. Raises InputError."""
    return trace_jobs(SOURCES[source](text, name, clock), node, name, source)
