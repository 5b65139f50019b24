"""`testbed qsub`, `testbed qstat` and `testbed qdel`: the user commands of a served lab."""

from __future__ import annotations

import json

import click
import msgspec
from rich.table import Table
from rich.text import Text

from testbed.control.queue_messages import Accepted, Answer, Delete, Deleted, Queue, QueuedJob, Refused, Show, Submit
from testbed.control.queue_socket import send, served_labs
from testbed.errors import RunError, UserError, printable
from testbed.study.report.terminal.console import wide_console


def qsub(
    *, urgent: bool, tasks: int, need: float, mem: float, work: float, estimate: float | None, program: str | None,
    least: float, lab: str | None, as_json: bool,
) -> int:  # fmt: skip
    job = Submit(
        tasks=tasks, cpu_need_frac=need, mem_req_frac=mem, work_s=work, estimate_s=estimate, urgent=urgent,
        program=program, least_yield_frac=least,
    )  # fmt: skip
    try:
        msgspec.convert(msgspec.to_builtins(job), Submit)
    except msgspec.ValidationError as error:
        raise UserError(f"the job: {error}") from None
    return _ask(lab, job, as_json=as_json)


def qstat(*, ended: bool, lab: str | None, as_json: bool) -> int:
    return _ask(lab, Show(ended=ended), as_json=as_json)


def qdel(*, job: int, lab: str | None, as_json: bool) -> int:
    return _ask(lab, Delete(job=job), as_json=as_json)


def _ask(lab: str | None, request: Submit | Show | Delete, *, as_json: bool) -> int:
    name = _only() if lab is None else lab
    answer = send(name, request)
    if as_json:
        click.echo(json.dumps({"lab": name, **msgspec.to_builtins(answer)}, indent=2))
    else:
        print_answer(name, answer)
    return (2 if answer.mistaken else 1) if isinstance(answer, Refused) else 0


def _only() -> str:
    """Return the lab that is served on this machine; raises an error if there is not exactly one."""
    labs = served_labs()
    if not labs:
        raise RunError("no lab is served on this machine: start `testbed serve`")
    if len(labs) > 1:
        raise UserError(f"labs {', '.join(labs)} are served on this machine: expected --lab with one of them")
    return labs[0]


def print_answer(lab: str, answer: Answer) -> None:
    """Print an answer as text for people."""
    match answer:
        case Accepted():
            click.echo(answer.job)
        case Deleted():
            click.echo(f"job {answer.job} is deleted")
        case Refused():
            click.echo(f"testbed: lab {lab}: {printable(answer.text)}", err=True)
        case Queue():
            _print_queue(answer)


def _print_queue(queue: Queue) -> None:
    console = wide_console()
    title = Text(f"{queue.lab}  {queue.policy}  {queue.state}")
    table = Table(title=title, title_justify="left", box=None)
    for name in ("job", "user", "state", "tasks", "need", "mem", "program", "work s", "done", "waited s", "nodes"):
        table.add_column(name, justify="left" if name in ("user", "state", "program", "nodes") else "right")
    for job in queue.jobs:
        table.add_row(*map(printable, _cells(job)))
    console.print(table, markup=False, highlight=False)  # texts of nodes and users must not be read as markup


def _cells(job: QueuedJob) -> list[str]:
    return [
        f"{job.job}{' xge' if job.urgent else ''}", job.user, job.state, str(job.tasks), f"{job.cpu_need_frac:g}",
        f"{job.mem_req_frac:g}", job.program, f"{job.work_s:g}", f"{job.done_frac:.0%}", f"{job.waited_s:.0f}",
        ", ".join(job.nodes) or job.reason,
    ]  # fmt: skip
