"""The fixtures of checks. Fixtures are synchronous: the lab's event loop runs in a thread of its own."""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import pytest

from testbed.errors import TestbedError, UserError
from testbed.lab.blocking import BlockingLabJob
from testbed.scheduling.workload.files import read_text
from testbed.study.checks.findings import of_verdict
from testbed.study.checks.judge import Verdict
from testbed.study.checks.lab import DriverUnderTest, LabUnderTest, NodeUnderTest
from testbed.study.checks.measuring import Trial, measure_figures
from testbed.study.checks.session import checks_of


class Measure(Protocol):
    """The type of the fixture `measure`."""

    def __call__(self, trial: Trial, *, condition: str = "") -> None:
        """Measure the figures of the marker `reference` and judge them.

        `trial` does one measurement with guests of its own and returns the figures by name. `condition` describes the
        measurement, such as `128 MiB`: a reference holds for one condition only.
        """


@pytest.fixture(scope="session")
def lab(
    pytestconfig: pytest.Config,
    tmp_path_factory: pytest.TempPathFactory,
    record_testsuite_property: Callable[[str, object], None],
) -> Iterator[LabUnderTest]:
    """The live lab: opened for the first check that needs it, under this process's lease until the session ends."""
    session = checks_of(pytestconfig)
    settings = session.settings
    opening = LabUnderTest(settings.scenario, settings.nodes, tmp_path_factory.mktemp("lab"))
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(opening)
        except UserError as error:  # a mistake in the call or its files: no check has failed
            pytest.exit(str(error), returncode=pytest.ExitCode.USAGE_ERROR)
        except Exception as error:  # of any type: the checks that follow are skipped with this reason
            session.failed_to_open = str(error) or type(error).__name__
            raise
        session.opened(opening)
        for name, value in session.provenance.items():
            record_testsuite_property(name, value)
        yield opening


@pytest.fixture(autouse=True)
def _fits_the_lab(request: pytest.FixtureRequest) -> None:
    """Skip a check whose marker `hypervisor` names other hypervisors than the lab's."""
    named = {name for marker in request.node.iter_markers("hypervisor") for name in marker.args}
    if not named:
        return
    found = request.getfixturevalue("lab").driver.names
    if not named & found:
        pytest.skip(f"the guests of this lab are {', '.join(sorted(found))}: expected {', '.join(sorted(named))}")


@pytest.fixture
def node(request: pytest.FixtureRequest, lab: LabUnderTest) -> NodeUnderTest:
    """Each node under test in turn, for checks with the marker `hypervisor`; for other checks the first node."""
    name = getattr(request, "param", lab.nodes[0].name)
    return next(found for found in lab.nodes if found.name == name)


@pytest.fixture
def driver(lab: LabUnderTest) -> DriverUnderTest:
    """The driver of the guests, with its capabilities."""
    return lab.driver


@pytest.fixture
def guest(request: pytest.FixtureRequest, lab: LabUnderTest) -> Callable[..., BlockingLabJob]:
    """A factory of jobs that are context managers: the job is destroyed at the end of the context, also after errors.

    Example: `with guest(memory_mib=256) as job: job.start()`. `LabUnderTest.guest` documents the arguments.
    In a check that takes a `node`, the job has one task on that node unless the call names nodes.
    """
    here: tuple[NodeUnderTest, ...] = ()
    if "node" in request.fixturenames:
        here = (request.getfixturevalue("node"),)
    record = checks_of(request.config).record(request.node)

    def make(*, nodes: Sequence[int | NodeUnderTest] = (), **details: Any) -> BlockingLabJob:
        made = lab.guest(nodes=nodes or here, **details)
        for name in made.nodes:
            if name not in record.nodes:
                record.nodes.append(name)
                request.node.user_properties.append(("node", name))
        return made

    return make


@pytest.fixture
def measure(request: pytest.FixtureRequest, lab: LabUnderTest) -> Measure:
    """Return a function that measures and judges the figures that the check's marker `reference` names."""
    names = [name for marker in request.node.iter_markers("reference") for name in marker.args]
    where: NodeUnderTest = request.getfixturevalue("node") if "node" in request.fixturenames else lab.nodes[0]
    session = checks_of(request.config)

    def run(trial: Trial, *, condition: str = "") -> None:
        if not names:
            raise ValueError('measure: expected figures on the check: @pytest.mark.reference("save_mib_per_s")')
        findings = measure_figures(names, trial, condition, lab, where, session.settings)
        session.record(request.node).findings.extend(findings)
        for finding in findings:
            request.node.user_properties.extend(finding.properties())
        if regressed := of_verdict(findings, Verdict.REGRESSED):
            pytest.fail("\n".join(finding.sentence for finding in regressed), pytrace=False)

    return run


@pytest.fixture
def doubt(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """A function that marks a check as UNCONFIRMED, with a reason: a possible fault that a busy machine cannot confirm.

    The check continues. If it does not fail otherwise, it passes and the summary shows the reason.
    """
    record = checks_of(request.config).record(request.node)

    def tell(reason: str) -> None:
        record.doubts.append(reason)
        request.node.user_properties.append(("doubt", reason))

    return tell


@pytest.fixture(scope="session")
def calibration(pytestconfig: pytest.Config) -> Mapping[str, Any]:
    """The tables of the file of `--calibration`; without that option, a check with this fixture is skipped."""
    path = checks_of(pytestconfig).settings.calibration
    if path is None:
        pytest.skip("no calibration: --calibration FILE names one")
    try:
        return tomllib.loads(read_text(path))
    except (TestbedError, tomllib.TOMLDecodeError) as error:
        raise pytest.UsageError(f"--calibration {path}: {error}") from error
