"""`testbed init`: creates a scenario file from a few answers."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, TypeVar

import click
import psutil

from testbed.bus.limits import LEAST_NODE_CORES, MOST_NODE_CORES
from testbed.control.validation import validate
from testbed.errors import UserError
from testbed.host.whole_files import draft_of
from testbed.scenario.new import Answers, scenario_text, usable_drivers
from testbed.scheduling.workload.readings import READINGS
from testbed.scheduling.workload.trace import is_table, load_trace

T = TypeVar("T")
_CORES = click.FloatRange(LEAST_NODE_CORES, MOST_NODE_CORES)
_JOBS = 20  # most jobs of a new scenario
_SPARE_MIB = 1024  # memory of the machine that is not given to nodes


def init(
    *, driver: str | None, nodes: int | None, cpus: float | None, memory_mib: int | None, trace: Path | None,
    reading: str | None, yes: bool, force: bool, target: Path,
) -> None:  # fmt: skip
    if os.path.exists(target) and not force:  # noqa: PTH110  # `Path.exists` raises where this user may not look
        raise UserError(f"{target}: exists: expected another file, or --force")
    usable = usable_drivers()
    if driver is not None and driver not in usable:
        raise UserError(f"--driver {driver}: this machine lacks what it needs: expected {' or '.join(usable)}")
    if driver is None:
        for name, reason in usable.items():
            click.echo(f"  {name}: {reason}", err=True)
        driver = _ask("driver", "process", click.Choice(list(usable)), yes)
    if nodes is None:
        nodes = _ask("number of nodes", 2, click.IntRange(1, 1000), yes)
    if cpus is None:
        cpus = _ask("cores per node", round(max((psutil.cpu_count() or 1) / nodes, 0.1), 2), _CORES, yes)
    if memory_mib is None:
        free_mib = psutil.virtual_memory().available // (1 << 20) - _SPARE_MIB
        memory_mib = _ask("MiB of memory per node", max(64, min(4096, free_mib // nodes)), click.IntRange(64), yes)
    if trace is None and reading is not None:
        raise UserError(f"--reading {reading}: there is no log to read: expected --trace as well")
    if trace is not None and reading is None and not is_table(trace):
        reading = _ask("reading of the log", next(iter(READINGS)), click.Choice(list(READINGS)), yes)
        click.echo(f"  {trace}: reading {reading}, of {', '.join(READINGS)}", err=True)
    jobs = _JOBS if trace is None else min(_JOBS, len(load_trace(trace, reading)))
    answers = Answers(
        name=re.sub(r"[^a-z0-9]+", "-", target.stem.lower()).strip("-")[:63] or "scenario", driver=driver, nodes=nodes,
        cpus=cpus, memory_mib=memory_mib, trace=None if trace is None else trace.absolute(),
        reading=reading or "", jobs=jobs,
    )  # fmt: skip
    _write(target, scenario_text(answers))
    click.echo(f"{target}: written\nnext: testbed run {target} --dry-run")


def _write(target: Path, text: str) -> None:
    """Write a scenario if it is valid; an existing file stays otherwise. Raises `UserError`."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with draft_of(target) as draft:
            draft.write_text(text, encoding="utf-8")
            found = validate(draft)
            for each in found:
                click.echo(f"{target}:{each.line}: {each.text}", err=True)
            if found:
                raise UserError(f"{target}: not written, as it would not be valid: expected other answers")
    except OSError as error:
        raise UserError(f"{target}: {error.strerror}: expected a file that this user may write") from None


def _ask(what: str, default: T, kind: Any, yes: bool) -> T:
    """Return the answer to a question, or its default with `yes`."""
    if yes:
        return default
    answer: T = click.prompt(what, default=default, type=kind, err=True)
    return answer
