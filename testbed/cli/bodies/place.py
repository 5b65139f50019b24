"""`testbed place`: static placement of services on nodes."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path

import click

from testbed.errors import UserError
from testbed.scheduling.static.algorithms import ALGORITHMS, Result, Settings, best
from testbed.scheduling.static.algorithms import place as place_by
from testbed.scheduling.static.problem import StaticProblem, problem_of
from testbed.scheduling.workload.files import write_text
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.trace import load_trace


def place(
    *, jobs_file: Path, nodes: int, algorithms: tuple[str, ...], time_limit_s: float, seed: int, reading: str | None,
    out: Path | None, as_json: bool,
) -> int:  # fmt: skip
    if not 0.0 < time_limit_s < math.inf:
        raise UserError(f"--time-limit-s {time_limit_s:g}: expected seconds, more than 0")
    jobs = load_trace(jobs_file, reading)
    problem = problem_of(jobs, nodes)
    results = []
    for name in algorithms or ALGORITHMS:
        try:
            results.append(place_by(problem, name, Settings(time_limit_s, seed)))
        except UserError as error:
            if algorithms:
                raise
            results.append(Result(name, None, 0.0, problem.bound, problem.bound, 0.0, str(error)))
    click.echo(json.dumps(_figures(problem, results), indent=2) if as_json else _table(problem, results))
    found = best(results)
    if found is not None and out is not None:
        write_text(out, _placement(jobs, found))
        click.echo(f"placement by {found.algorithm}: {out}", err=True)
    return 0 if found is not None else 1


def _figures(problem: StaticProblem, results: Sequence[Result]) -> dict[str, object]:
    return {
        "tasks": problem.tasks,
        "nodes": problem.nodes,
        "memory_slack_frac": problem.memory_slack_frac,
        "bound": problem.bound,
        "results": [
            {
                "algorithm": each.algorithm, "placed": each.node is not None, "minimum_yield": each.minimum_yield,
                "bound": each.bound, "gap_frac": each.gap_frac, "proven_bound": each.proven_bound,
                "elapsed_s": each.elapsed_s, "note": each.note,
            }
            for each in results
        ],
    }  # fmt: skip


def _table(problem: StaticProblem, results: Sequence[Result]) -> str:
    about = (
        f"{problem.tasks} tasks on {problem.nodes} nodes, memory slack {problem.memory_slack_frac:.1%}; no placement "
        f"has a minimum yield above {problem.bound:.4f} (linear relaxation)"
    )
    lines = [
        about,
        f"{'algorithm':10}  {'minimum yield':>13}  {'bound':>7}  {'gap':>6}  {'seconds':>9}",
    ]
    for each in results:
        least = "not placed" if each.node is None else f"{each.minimum_yield:.4f}"
        gap = "" if each.node is None else f"{each.gap_frac:.1%}"
        note = each.note
        if each.node is not None and each.proven_bound < each.bound:
            note = f"{note}, proven bound {each.proven_bound:.4f}, gap {each.proven_gap_frac:.1%}".removeprefix(", ")
        line = f"{each.algorithm:10}  {least:>13}  {each.bound:7.4f}  {gap:>6}  {each.elapsed_s:9.4f}  {note}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def _placement(jobs: Sequence[Job], found: Result) -> str:
    """Return the placement as CSV, with one line per task."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("job_id", "task", "node"))
    places = iter([] if found.node is None else found.node.tolist())
    for job in jobs:
        rows.writerows((job.job_id, task, next(places)) for task in range(job.tasks))
    return text.getvalue()
