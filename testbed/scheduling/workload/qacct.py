"""Accounting of Grid Engine: the output of `qacct -j`, one block of lines `key value` per job or task of an array.

The reader supports Sun Grid Engine 6, Son of Grid Engine, Univa Grid Engine and Open Cluster Scheduler. The keys:

* `jobnumber`, `qsub_time`, `start_time`, `slots`, and `ru_wallclock` or `end_time`, which every block has
* `taskid`, of an array; `failed`; `qname`
* `maxrss`, or `maxvmem` where it is 0: memory that the job used
* `category`, or `submit_cmd` without it: the requests `h_rt`, a time limit, and `h_vmem`, memory per slot
* `pe_taskid`: unless it is NONE, the block is of a slave task of a parallel job, as is a block with a `qsub_time` of 0.
  Such a block is not a job, but its memory counts as used by the job.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from typing import NamedTuple

from testbed.errors import InputError
from testbed.scheduling.workload.accounting import NEVER_RAN, NOT_ENDED, SiteJob, SiteRecords, check_class, check_cores
from testbed.scheduling.workload.accounting_values import Cell, Clock, read_count, read_seconds, read_size
from testbed.scheduling.workload.files import text_lines

_NEEDED = ("jobnumber", "qsub_time", "start_time", "slots")
_REQUESTS = ("category", "submit_cmd", "submit_cmd_line")
_OTHERS = ("taskid", "pe_taskid", "end_time", "ru_wallclock", "failed", "qname", "maxrss", "maxvmem")
_KEYS = frozenset((*_NEEDED, *_REQUESTS, *_OTHERS))
_RULE = re.compile("={10,}")
_SUMMARY = "Total System Usage"  # `qacct -j` without a job ends with it, two lines of titles and one of numbers

_FAILED = re.compile(r"([0-9]{1,9})(?:\s*:.*)?")
# Requests in free text; a value of another form, such as INFINITY, is not a request.
_TIME_LIMIT = re.compile(r"(?<![^\s,])h_rt=(?:([0-9]{1,9})|([0-9]{0,9}):([0-9]{0,9}):([0-9]{0,9}))(?![^\s,])")
_MEMORY = re.compile(r"(?<![^\s,])h_vmem=([0-9]{1,18}(?:\.[0-9]{1,9})?[KkMmGgTtPp]?)(?![^\s,])")


def read_qacct(text: str, name: str, clock: Clock) -> SiteRecords:
    """Return the jobs of the text; `name` stands for the file in errors.

    Raises InputError, naming file, line and key, for a block without a required key or with a key twice, and for an
    invalid value.
    """
    records = SiteRecords()
    slaves_bytes: dict[Hashable, float] = {}
    for block in _blocks(text, name):
        _add(block, clock, records, slaves_bytes)
    for job in records.jobs.values():
        if slaves := slaves_bytes.get((job.number, job.task)):
            job.used_bytes = (job.used_bytes or 0.0) + slaves
    return records


class _Block(NamedTuple):
    """A block: the place of its first line, and its cells by key."""

    where: str
    cells: dict[str, Cell]

    def cell(self, key: str) -> Cell:
        """Return the value of a key, or a missing value."""
        return self.cells.get(key) or Cell(self.where, key, "")


def _blocks(text: str, name: str) -> Iterator[_Block]:
    block: _Block | None = None
    rules_to_skip = 0
    for line_number, line in enumerate(text_lines(text), start=1):
        where = f"{name}:{line_number}"
        if _RULE.fullmatch(line.strip()):
            rules_to_skip = max(rules_to_skip - 1, 0)
            if block is not None:
                yield block
            block = None
        elif line.strip().startswith(_SUMMARY):
            rules_to_skip = 2  # the rule between titles and numbers, and the one before the next block
        elif not rules_to_skip:
            key, _, value = line.strip().partition(" ")
            if key not in _KEYS:
                continue
            block = block or _Block(where, {})
            if key in block.cells:
                raise InputError(where, key, value.strip(), "each key once between two lines of '='")
            block.cells[key] = Cell(where, key, value.strip())
    if block is not None:
        yield block


def _add(block: _Block, clock: Clock, records: SiteRecords, slaves_bytes: dict[Hashable, float]) -> None:
    """Add the job of a block to the records, or the memory of a slave task to the job that it belongs to."""
    if missing := [key for key in _NEEDED if key not in block.cells]:
        raise InputError(block.where, "keys", ", ".join(block.cells), f"also {', '.join(missing)} in this block")
    records.count += 1
    number_cell = block.cell("jobnumber")
    if (number := read_count(number_cell)) is None:
        raise number_cell.error("the number of a job")
    task = read_count(block.cell("taskid")) or None
    submit_s = clock.unix_time_s(block.cell("qsub_time"), records.notes)
    used_bytes = read_size(block.cell("maxrss")) or read_size(block.cell("maxvmem"))
    if submit_s is None or block.cell("pe_taskid").known:
        records.notes["are slave tasks of a parallel job and were left out"] += 1
        slaves_bytes[number, task] = slaves_bytes.get((number, task), 0.0) + (used_bytes or 0.0)
        return
    # A restarted job keeps its submission time. The number alone is not unique, as job numbers wrap around to 1.
    records.add((number, task, submit_s), _job(block, clock, number, task, submit_s, used_bytes))


def _job(
    block: _Block, clock: Clock, number: int, task: int | None, submit_s: float, used_bytes: float | None
) -> SiteJob | str:
    """Return the job of a block, or the reason why it gives none."""
    start_s = clock.unix_time_s(block.cell("start_time"))
    slots_cell = block.cell("slots")
    slots = check_cores(slots_cell, read_count(slots_cell) or 0)
    failed = _failed(block)
    if start_s is None or slots == 0:
        return NEVER_RAN
    run_time_s = _run_time_s(block, clock, start_s)
    if run_time_s is None:
        return NOT_ENDED
    if run_time_s == 0 and failed:  # it failed before the job's script
        return NEVER_RAN
    requests = next((block.cell(key).text for key in _REQUESTS if block.cell(key).known), "")
    return SiteJob(
        block.where,
        number,
        task,
        submit_s,
        start_s,
        run_time_s,
        slots,
        None,
        _requested_bytes(requests, slots),
        used_bytes,
        check_class(block.cell("qname")),
        _limit_s(requests),
    )


def _run_time_s(block: _Block, clock: Clock, start_s: float) -> float | None:
    """Return the run time that Grid Engine measured, or else the time between start and end."""
    if measured := read_seconds(block.cell("ru_wallclock")):
        return measured
    end = block.cell("end_time")
    if (end_s := clock.unix_time_s(end)) is None:
        return None
    if end_s < start_s:
        start = block.cell("start_time").text
        raise end.error(f"a time from {start}, the start, on; clocks that were put back need --timezone")
    return end_s - start_s


def _failed(block: _Block) -> bool:
    """Whether Grid Engine failed to run the job; the exit status of the job itself is another value."""
    cell = block.cell("failed")
    if not cell.known:
        return False
    if not (match := _FAILED.fullmatch(cell.text)):
        raise cell.error("a code, and what it means, such as 0 or 26 : opening input/output file")
    return int(match[1]) != 0


def _limit_s(requests: str) -> float | None:
    """Return the last requested `h_rt`, which is in seconds or hours:minutes:seconds, with empty parts for 0."""
    found = _TIME_LIMIT.findall(requests)
    if not found:
        return None
    seconds, hours, minutes, rest = found[-1]
    return float(seconds or int(hours or 0) * 3600 + int(minutes or 0) * 60 + int(rest or 0))


def _requested_bytes(requests: str, slots: int) -> float | None:
    found = _MEMORY.findall(requests)
    size = read_size(Cell("", "h_vmem", found[-1])) if found else None
    return None if size is None else size * slots
