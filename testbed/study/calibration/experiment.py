"""The base class of experiments: an experiment has conditions, trials of them, and the evaluation of its trials.

The pipeline (plan, trials, `calibration.toml`, tables, report) knows no experiment by name: it calls all experiments
that are registered under the entry point group `testbed.experiments`. A class derived from `Experiment` needs `name`,
`about`, `conditions`, `trial` and `quantities`; all other members are optional.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from testbed.bus.messages import NodeFacts
from testbed.scenario.schema import Scenario
from testbed.study.calibration.values import Condition, Observation

if TYPE_CHECKING:
    from testbed.lab.lab import Lab
    from testbed.study.calibration.model import Assumption
    from testbed.study.calibration.quantities import Quantities
    from testbed.study.calibration.trials import Outcome
    from testbed.study.report.calibration.data import Clocks, Measured, Series
    from testbed.study.report.page.style import Absent, Chart, Headline

AFTER_BUILT_IN = 1000


@dataclass(frozen=True, slots=True)
class LabFacts:
    """The facts that decide which conditions a lab can do."""

    scenario: Scenario
    facts: tuple[NodeFacts, ...]

    @property
    def floor_mib(self) -> int:
        """The least memory of a guest in MiB that every node accepts."""
        return max(fact.guest_floor_mib for fact in self.facts)

    @property
    def memory_mib(self) -> int:
        """Memory of the smallest node in MiB."""
        return min(fact.memory_mib for fact in self.facts)

    @property
    def cpus(self) -> float:
        """Cores of the smallest node."""
        return min(fact.cpus for fact in self.facts)

    def able(self, capability: str) -> bool:
        """Return whether every node has a capability."""
        return all(capability in fact.capabilities for fact in self.facts)


class Experiment(ABC):
    """Base class of experiments.

    `name` is the name in `--experiments` and in the records: small letters, digits and "-". `about` is a description in
    one line. Quantities, figures and assumptions are sorted by `order`, then by name. `section` is the title of the
    report's section with the figures, which several experiments may share.

    The methods after `trial` evaluate the successful trials of this experiment, also those of earlier sessions, or no
    trials if the experiment was not done. An exception loses only the results of this experiment.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    section: ClassVar[str] = "Other experiments"
    order: ClassVar[int] = AFTER_BUILT_IN

    def why_not(self, lab: LabFacts) -> str:  # noqa: ARG002  # by default every lab can do the experiment
        """Return the reason why this lab cannot do the experiment, or an empty text."""
        return ""

    @abstractmethod
    def conditions(self, lab: LabFacts, *, quick: bool) -> list[Observation]:
        """Return the conditions of the trials on a lab that can do them; with `quick` only the most important ones."""

    def expected_s(self, condition: Condition, lab: LabFacts) -> float:  # noqa: ARG002  # one estimate for all
        """Return an estimate of a trial's duration in seconds, for use before the first trial of its condition."""
        return 5.0

    @abstractmethod
    async def trial(self, lab: Lab, condition: Condition) -> list[Observation]:
        """Do one trial with fresh guests and return its observations; raises `TestbedError` if it failed.

        A trial is the independent unit of all statistics.
        """

    @abstractmethod
    def quantities(self, trials: Sequence[Outcome]) -> Quantities:
        """Return the quantities that the trials support, each with its unit, its interval and its condition.

        Names of quantities end in their unit, and no other experiment may have the same names.
        """

    def assumptions(self, quantities: Quantities) -> Mapping[str, Assumption]:  # noqa: ARG002  # by default none
        """Return the verdict on each assumption that the experiment tests, by name; "not measured" without trials."""
        return {}

    def figures(self, measured: Measured) -> Sequence[Chart | Absent]:  # noqa: ARG002  # by default none
        """Return the figures, with `measured.absent` for a figure that the trials do not support.

        matplotlib belongs to the extra `report`: no module may import it before a figure is drawn.
        """
        return ()

    def headlines(self, measured: Measured) -> Sequence[Headline]:  # noqa: ARG002  # by default none
        """Return the main numbers of the experiment, for the top of the report."""
        return ()

    def penalties(self, measured: Measured) -> Sequence[Series] | None:  # noqa: ARG002  # by default none
        """Return rescheduling penalties in seconds, for the figure that compares all of them with 300 s [RR 5.1].

        Return None for an experiment that does not measure reschedulings.
        """
        return None

    def clocks(self, measured: Measured) -> Sequence[Clocks] | None:  # noqa: ARG002  # by default none
        """Return durations by two clocks for a figure that compares them; None if there is only one clock."""
        return None
