"""Validation of a scenario file: reports all errors at once, each with its line."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from testbed.errors import UserError
from testbed.scenario.jobs import load_jobs
from testbed.scenario.schema import Scenario, complete, expected_words
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.policies.view import can_ever_run
from testbed.scheduling.workload.jobs import Job
from testbed.toml_files import mistakes
from testbed.toml_lines import line_of


@dataclass(frozen=True, slots=True)
class Finding:
    """An error in a file; `line` is 0 if the error has no line."""

    line: int
    text: str


def validate(path: Path) -> list[Finding]:
    """Return all errors of a scenario file, in order of lines.

    If its keys have no errors, the names of its policies are checked, and whether its jobs fit on its nodes.
    """
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except OSError as error:
        return [Finding(0, f"cannot read: {error.strerror}; expected a scenario")]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return [Finding(0, f"not a TOML file: {error}")]
    try:
        scenario = complete(Scenario.model_validate(data), path)
    except ValidationError as error:
        found = mistakes(path, Scenario, error, words=expected_words)
        return sorted(
            (Finding(line_of(text, each.location), str(each.error).removeprefix(f"{path}: ")) for each in found),
            key=lambda finding: finding.line,
        )
    return _meaning(scenario, path, text)


def _meaning(scenario: Scenario, path: Path, text: str) -> list[Finding]:
    found: list[Finding] = []
    policies = []
    for name in scenario.policy:
        try:
            policies.append(parse(name, scenario.period_s))
        except UserError as error:
            found.append(Finding(line_of(text, ("policy",)), str(error)))
    if scenario.workload.trace is None and scenario.workload.lublin is None:
        return found  # the trace has to be given with --trace
    try:
        jobs = load_jobs(scenario, path)
    except UserError as error:
        return [*found, Finding(line_of(text, ("workload",)), str(error))]
    nodes = len(scenario.nodes)
    for policy in policies:
        large = [job for job in jobs if not can_ever_run(policy, job, nodes)]
        if large:
            found.append(Finding(line_of(text, ("nodes",)), _too_large(large, nodes, policy.name)))
    return found


def _too_large(jobs: list[Job], nodes: int, policy: str) -> str:
    job = jobs[0]
    more = f", and {len(jobs) - 1} more jobs do not" if len(jobs) > 1 else ""
    return (
        f"job {job.job_id}: {job.tasks} tasks with mem_req_frac = {job.mem_req_frac:g} do not fit on {nodes} nodes "
        f"under {policy}{more}: expected more nodes or smaller jobs"
    )
