"""Hooks of a pytest session with a lab: skipped checks, the display of outcomes, and the report at the end."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.errors import TestbedError
from testbed.scheduling.workload.files import write_text
from testbed.study.checks.findings import CheckRecord, Finding, of_verdict
from testbed.study.checks.judge import Verdict
from testbed.study.checks.lab import LabUnderTest
from testbed.study.checks.machine import accelerator_of, testbed_version
from testbed.study.checks.settings import Settings

_UNCONFIRMED = ("testbed.outcome", "UNCONFIRMED")
_SHOWN = (
    (Verdict.REGRESSED, "red"), (Verdict.UNCONFIRMED, "yellow"), (Verdict.IMPROVED, "cyan"),
    (Verdict.NO_REFERENCE, "purple"),
)  # fmt: skip
_KEY = pytest.StashKey["CheckSession"]()


def checks_of(config: pytest.Config) -> CheckSession:
    """Return the check session of a pytest configuration."""
    return config.stash[_KEY]


class CheckSession:
    """State of the session: the lab once it is open, the reason if it is broken, and the results."""

    def __init__(self, settings: Settings, json_path: Path | None) -> None:
        self.settings = settings
        self.lab: LabUnderTest | None = None
        self.failed_to_open = ""
        self.provenance: dict[str, str] = {}
        self.machines: dict[str, str] = {}
        self._json_path = json_path
        self._records: dict[str, CheckRecord] = {}
        self._interrupted = False
        self._on_term: Any = None

    @classmethod
    def from_options(cls, config: pytest.Config) -> CheckSession:
        """Read the options; raises `pytest.UsageError` for invalid options."""
        if hasattr(config, "workerinput") or getattr(config.option, "numprocesses", None):
            raise pytest.UsageError("--scenario: one process drives a lab: expected no parallel workers (-n)")
        options = config.option
        try:
            settings = Settings.checked(
                options.scenario, options.nodes, options.references, options.calibration, options.fresh_guests,
                update=options.update_references,
            )  # fmt: skip
        except TestbedError as error:
            raise pytest.UsageError(str(error)) from error
        config.stash[_KEY] = session = cls(settings, options.checks_json)
        return session

    @property
    def broken(self) -> str:
        """The reason why no more checks can run, or an empty text."""
        return self.failed_to_open or (self.lab.broken if self.lab is not None else "")

    def opened(self, lab: LabUnderTest) -> None:
        """Take the lab that was opened, and note its machines and its provenance."""
        self.lab = lab
        self.machines = {node.name: lab.machine(node) for node in lab.nodes}
        facts = lab.nodes[0].facts
        self.provenance = {
            "lab": lab.scenario.lab,
            "scenario": lab.scenario.name,
            "nodes": ",".join(node.name for node in lab.nodes),
            "driver": facts.driver,
            "hypervisor": lab.driver.hypervisor,
            "accelerator": accelerator_of(facts),
            "kernel": facts.kernel,
            "cpu_model": facts.cpu_model,
            "guest_image": facts.versions.get("guest-image", ""),
            **{
                f"version.{name}": version
                for name, version in sorted(facts.versions.items())
                if name not in {"guest-image", "testbed"}
            },
            "testbed": testbed_version(),
        }

    def record(self, item: pytest.Item) -> CheckRecord:
        """Return the record of a check."""
        return self._records.setdefault(item.nodeid, CheckRecord(item.nodeid))

    @property
    def findings(self) -> list[Finding]:
        """All figures so far."""
        return [finding for record in self._records.values() for finding in record.findings]

    # --- hooks

    def pytest_sessionstart(self) -> None:
        """Clean up on SIGTERM as on Ctrl-C; a second SIGTERM, such as one to the process group, is ignored."""
        if threading.current_thread() is threading.main_thread():
            self._on_term = signal.signal(signal.SIGTERM, _interrupt)

    def pytest_unconfigure(self) -> None:
        """Restore the previous handler of SIGTERM."""
        if self._on_term is not None:
            signal.signal(signal.SIGTERM, self._on_term)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip checks that need a lab which is broken, with the reason why it is broken."""
        if self.broken and "lab" in getattr(item, "fixturenames", ()):
            pytest.skip(f"the lab is broken: {self.broken}")

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run a check that takes a `node` on each node under test."""
        if "node" in metafunc.fixturenames and any(metafunc.definition.iter_markers("hypervisor")):
            metafunc.parametrize("node", self.settings.nodes, indirect=True, ids=self.settings.nodes)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        """Record the outcome of each phase of a check."""
        del call
        report: pytest.TestReport = yield  # type: ignore[assignment]  # the wrapped hook's result
        record = self.record(item)
        record.elapsed_s += report.duration
        doubtful = record.doubts or of_verdict(record.findings, Verdict.UNCONFIRMED)
        if report.when == "call" and report.passed and doubtful:
            report.user_properties.append(_UNCONFIRMED)
            record.outcome = "unconfirmed"
        elif report.skipped:
            record.outcome, record.reason = "skipped", _reason(report)
        elif report.failed:
            record.outcome = "failed" if report.when == "call" else "error"
            record.reason = record.reason or _reason(report)
        return report  # type: ignore[return-value]  # the wrapped hook's result

    def pytest_report_teststatus(self, report: pytest.CollectReport | pytest.TestReport) -> Any:
        """Show an unconfirmed regression with its own status, because it passes but needs attention."""
        if report.when == "call" and _UNCONFIRMED in getattr(report, "user_properties", ()):
            return "unconfirmed", "U", ("UNCONFIRMED", {"yellow": True})
        return None

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the figures and doubts that need attention."""
        shown = [(verdict, colour, of_verdict(self.findings, verdict)) for verdict, colour in _SHOWN]
        updated = [finding for finding in self.findings if finding.updated]
        if self.broken:
            terminalreporter.section("lab is broken", red=True)
            terminalreporter.line(self.broken)
        doubts = [f"{record.check}: {doubt}" for record in self._records.values() for doubt in record.doubts]
        if doubts:
            terminalreporter.section("unconfirmed")
        for doubt in doubts:
            terminalreporter.line(doubt, yellow=True)
        if updated or any(findings for _, _, findings in shown):
            terminalreporter.section("figures")
        for _verdict, colour, findings in shown:
            for finding in findings:
                terminalreporter.line(finding.sentence, **{colour: True})
        for finding in updated:
            terminalreporter.line(finding.sentence)
        if updated:
            terminalreporter.line(f"references: {self.settings.references}")

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Record that a user interrupted the session; pytest also calls this after an error in the collection."""
        self._interrupted = not isinstance(excinfo.value, pytest.Session.Interrupted | pytest.exit.Exception)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int | pytest.ExitCode) -> None:
        """Write the results as JSON if `--checks-json` names a file."""
        del session
        if self._json_path is not None:
            write_text(self._json_path, json.dumps(self.as_dict(int(exitstatus)), indent=2) + "\n")

    def as_dict(self, exit_status: int) -> dict[str, object]:
        """Return the results of the session as data for JSON."""
        records = list(self._records.values())
        outcomes = [record.outcome for record in records]
        return {
            "provenance": self.provenance,
            "machines": self.machines,
            "references": str(self.settings.references),
            "broken": self.broken,
            "interrupted": self._interrupted,
            "exit_status": exit_status,
            "counts": {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))},
            "checks": [record.as_dict() for record in records],
        }


def _interrupt(number: int, _frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash is not None else report.longreprtext).strip()
