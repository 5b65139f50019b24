"""The pytest call of `testbed check`: a separate process that ignores configuration and plugins of other projects."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import testbed.study.checks.suite
from testbed.errors import RunError
from testbed.host.interpreter import module_argv

_OK, _FAILED, _INTERRUPTED, _USAGE, _NOTHING = 0, 1, 2, 4, 5  # exit codes of pytest
_CONFIG = "pytest.ini"


def pytest_argv(options: Sequence[str], checks: Sequence[Path]) -> list[str]:
    """Return the command line for the packaged checks, or for `checks`.

    It works with and without an installed entry point of the plugin. The packaged checks have a configuration of their
    own; the checks of a lab use that of their own project.
    """
    suite = Path(testbed.study.checks.suite.__file__).parent
    where = [f"--rootdir={suite}", "-c", str(suite / _CONFIG), str(suite)] if not checks else list(map(str, checks))
    plugin = ["-p", "no:testbed", "-p", "testbed.study.checks.plugin", "-p", "no:cacheprovider"]
    # a `testbed/` beside CHECKS must not replace the installed package
    imports = "--import-mode=append"
    return module_argv("pytest", *plugin, imports, *options, *where)


def run_checks(options: Sequence[str], checks: Sequence[Path], *, as_json: bool) -> int:
    """Run checks and return the exit code of the command; raises `RunError` if pytest itself failed."""
    with tempfile.TemporaryDirectory(prefix="dfrs-check-") as folder:
        report = Path(folder) / "checks.json"
        argv = pytest_argv([*options, f"--checks-json={report}"], checks)
        code = _wait(subprocess.Popen(argv, stdout=sys.stderr if as_json else None))  # noqa: S603  # no shell
        text = report.read_text(encoding="utf-8") if report.exists() else ""
    if as_json and text:
        sys.stdout.write(text)
    return exit_code(code, interrupted=bool(text) and json.loads(text)["interrupted"] is True)


def exit_code(code: int, *, interrupted: bool) -> int:
    """Return the testbed's exit code for one of pytest's; raises `RunError`."""
    if interrupted or code == -signal.SIGINT:
        return 130
    if code in {_OK, _FAILED}:
        return code
    if code in {_USAGE, _NOTHING}:
        return 2
    if code == _INTERRUPTED:  # no user did: an error in a file of checks ended the collection
        return 1
    raise RunError(f"pytest ended with code {code}: its last lines give the reason")


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for the process to end and return its exit code.

    Ctrl-C of the terminal reaches that process directly. SIGTERM is forwarded to it, so that it cleans up, too.
    """
    with _handed_on(process):
        while True:
            with contextlib.suppress(KeyboardInterrupt):
                return process.wait()


@contextlib.contextmanager
def _handed_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, lambda _number, _frame: process.terminate())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
