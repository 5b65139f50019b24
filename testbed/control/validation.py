"""Validation of a scenario file: reports all errors at once, each with its line."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from testbed.bus.address import BrokerAddress
from testbed.control.admission import check_jobs
from testbed.control.move_costs import known_costs, way_costs
from testbed.errors import InputError, UserError
from testbed.lab.boxes import spec_of
from testbed.lab.local_agents import check_drivers
from testbed.measure.recorders import find_recorders
from testbed.scenario.jobs import load_jobs
from testbed.scenario.schema import FORMER_NAMES, Scenario, complete, expected_words
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

    If its keys have no errors, the names of its policies, drivers and recorders are checked, as well as its broker, its
    box, its overhead model, and whether its jobs fit on its nodes, as before a run.
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
        found = [
            _as_written(each.location, str(each.error).removeprefix(f"{path}: "), data, text)
            for each in mistakes(path, Scenario, error, words=expected_words)
        ]
        return sorted(found, key=lambda finding: finding.line)
    return _meaning(scenario, path, text)


def _as_written(location: Sequence[int | str], message: str, data: Mapping[str, Any], text: str) -> Finding:
    """Return the finding of an invalid value, with the former name of a key if the file has that."""
    key = location[0] if location else None
    former = FORMER_NAMES.get(str(key))
    if former is not None and former in data and key not in data:
        return Finding(line_of(text, (former,)), message.replace(f"{key} =", f"{former} =", 1))
    return Finding(line_of(text, location), message)


class _Checks:
    """Checks of a scenario without errors in its keys, and their findings."""

    def __init__(self, path: Path, text: str) -> None:
        self._path, self._text = path, text
        self._found: list[Finding] = []

    def check(self, location: tuple[str, ...], action: Callable[[], object]) -> None:
        """Note the error of an action at its own field, or at this location."""
        try:
            action()
        except InputError as error:
            steps = tuple(int(step) if step.isdecimal() else step for step in error.field.split("."))
            self._note(steps if steps[0] == location[0] else location, error)
        except UserError as error:
            self._note(location, error)

    def _note(self, location: tuple[int | str, ...], error: UserError) -> None:
        line = line_of(self._text, location)
        self._found.append(Finding(line, str(error).removeprefix(f"{self._path}: ")))

    @property
    def found(self) -> list[Finding]:
        """The findings in order of lines; of equal texts the first one."""
        once = {each.text: each for each in reversed(self._found)}
        return sorted(once.values(), key=lambda finding: finding.line)


def _meaning(scenario: Scenario, path: Path, text: str) -> list[Finding]:
    checks, broker = _Checks(path, text), scenario.broker
    policies: list[Policy] = []
    for name in scenario.policy:
        checks.check(("policy",), partial(_parse, name, scenario, policies))
    checks.check(("nodes",), partial(check_drivers, scenario))
    checks.check(("recorders",), partial(find_recorders, scenario.recorders))
    if broker.kind is None and not broker.address.startswith("$"):  # else the environment has the address
        checks.check(("broker", "address"), partial(BrokerAddress.parse, broker.address, broker.tls_dir))
    if scenario.box is not None:
        checks.check(("box",), partial(spec_of, scenario))
    checks.check(("overheads",), partial(way_costs, scenario))
    jobs: list[Job] = []
    if scenario.workload.trace is not None or scenario.workload.lublin is not None:  # else --trace names the trace
        checks.check(("workload",), lambda: jobs.extend(load_jobs(scenario, path)))
    for policy in policies:
        checks.check(("overheads",), partial(known_costs, policy, scenario))
        checks.check(("nodes",), partial(check_jobs, jobs, policy, scenario))
    return checks.found


def _parse(name: str, scenario: Scenario, policies: list[Policy]) -> None:
    policies.append(parse(name, scenario.period_s))
