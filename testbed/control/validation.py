"""Validation of a scenario file: reports all errors at once, each with its line."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from testbed.control.admission import check_jobs
from testbed.errors import UserError
from testbed.lab.local_agents import check_drivers
from testbed.measure.recorders import find_recorders
from testbed.scenario.jobs import load_jobs
from testbed.scenario.schema import Scenario, complete, expected_words
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.policies.view import Policy
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

    If its keys have no errors, the names of its policies, drivers and recorders are checked, as well as its overhead
    model and whether its jobs fit on its nodes, as before a run.
    """
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except OSError as error:
        return [Finding(0, f"cannot read: {error.strerror}; expected a scenario")]
    except (ValueError, RecursionError) as error:  # also of integers with thousands of digits, and deep nesting
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

    def check(location: tuple[str, ...], action: Callable[[], object]) -> None:
        try:
            action()
        except UserError as error:
            found.append(Finding(line_of(text, location), str(error).removeprefix(f"{path}: ")))

    policies: list[Policy] = []
    for name in scenario.policy:
        check(("policy",), partial(_parse, name, scenario, policies))
    check(("nodes",), partial(check_drivers, scenario))
    check(("recorders",), partial(find_recorders, scenario.recorders))
    jobs: list[Job] = []
    if scenario.workload.trace is not None or scenario.workload.lublin is not None:  # else --trace names the trace
        check(("workload",), lambda: jobs.extend(load_jobs(scenario, path)))
    for policy in policies:
        check(("nodes",), partial(check_jobs, jobs, policy, scenario))
    return sorted({(each.line, each.text): each for each in found}.values(), key=lambda finding: finding.line)


def _parse(name: str, scenario: Scenario, policies: list[Policy]) -> None:
    policies.append(parse(name, scenario.period_s))
