"""An experiment: conditions that a lab can do, trials of them, and what its trials say, all of it in one module.

The pipeline (plan, trials, `calibration.toml`, tables, report) knows no experiment by name: it asks every one that is
registered under the entry point group `testbed.experiments`. A class derived from `Experiment` needs `name`, `about`,
`conditions`, `trial` and `quantities`; all else is optional.
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
        """The least memory of a guest on every node."""
        return max(fact.guest_floor_mib for fact in self.facts)

    @property
    def memory_mib(self) -> int:
        """Memory of the smallest node."""
        return min(fact.memory_mib for fact in self.facts)

    @property
    def cpus(self) -> float:
        """Cores of the smallest node."""
        return min(fact.cpus for fact in self.facts)

    def able(self, capability: str) -> bool:
        """Whether every node has a capability."""
        return all(capability in fact.capabilities for fact in self.facts)


class Experiment(ABC):
    """One question to the lab.

    `name` is that of `--experiments` and of the records: small letters, digits and "-". `about` describes it in one
    line. Quantities, figures and assumptions come in the order of `order`, then of names; `section` is the title of
    the part of the report that holds the figures, shared with other experiments of the same section.

    The methods after `trial` read trials, also those of earlier sessions: the trials of this experiment that succeeded,
    none if it was not done. An exception costs the results of this experiment only.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    section: ClassVar[str] = "Other experiments"
    order: ClassVar[int] = AFTER_BUILT_IN

    def why_not(self, lab: LabFacts) -> str:  # noqa: ARG002  # by default every lab can
        """Return why this lab cannot do the experiment, or an empty text."""
        return ""

    @abstractmethod
    def conditions(self, lab: LabFacts, *, quick: bool) -> list[Observation]:
        """Return what to vary, for a lab that can do it; `quick` asks for the few that matter most."""

    def expected_s(self, condition: Condition, lab: LabFacts) -> float:  # noqa: ARG002  # by default a guess for all
        """Return the approximate duration of a trial, before any was done."""
        return 5.0

    @abstractmethod
    async def trial(self, lab: Lab, condition: Condition) -> list[Observation]:
        """Do one trial with fresh guests and return its observations; raises `TestbedError` if it failed.

        A trial is the independent unit of all statistics.
        """

    @abstractmethod
    def quantities(self, trials: Sequence[Outcome]) -> Quantities:
        """Return the quantities that the trials support: each with its unit, its interval and its condition.

        The names of quantities are those of this experiment alone, and end in their unit.
        """

    def assumptions(self, quantities: Quantities) -> Mapping[str, Assumption]:  # noqa: ARG002  # by default none
        """Return the verdict on each assumption that the experiment tests, by name, "not measured" without trials."""
        return {}

    def figures(self, measured: Measured) -> Sequence[Chart | Absent]:  # noqa: ARG002  # by default it has none
        """Return the figures, `measured.absent` in place of one that the trials do not support.

        matplotlib belongs to the extra `report`: nothing may import it before a figure is drawn.
        """
        return ()

    def headlines(self, measured: Measured) -> Sequence[Headline]:  # noqa: ARG002  # by default it has none
        """Return the numbers that the report begins with."""
        return ()

    def penalties(self, measured: Measured) -> Sequence[Series] | None:  # noqa: ARG002  # by default it has none
        """Return seconds that reschedulings took from jobs, to draw beside those of others and the 300 s of [RR 5.1].

        None is for an experiment that is not about reschedulings.
        """
        return None

    def clocks(self, measured: Measured) -> Sequence[Clocks] | None:  # noqa: ARG002  # by default it has none
        """Return durations by two clocks, to draw them against each other; None where there is only one clock."""
        return None
