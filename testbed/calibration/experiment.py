"""What an experiment is: conditions that a lab can do, and one trial of a condition with fresh guests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from testbed.bus.messages import NodeFacts
from testbed.scenario.schema import Scenario

if TYPE_CHECKING:
    from testbed.lab.lab import Lab

Value = float | int | str
Condition = Mapping[str, Value]
Observation = dict[str, Value]


@dataclass(frozen=True, slots=True)
class LabFacts:
    """What decides which conditions a lab can do."""

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


class Experiment(Protocol):
    """One question to the lab. A trial of it is the independent unit of all statistics."""

    @property
    def name(self) -> str:
        """As in `--experiments` and in the records: small letters and '-'."""

    @property
    def about(self) -> str:
        """One line for who reads a list of them."""

    def why_not(self, lab: LabFacts) -> str:
        """Return why this lab cannot do it, or an empty text."""

    def conditions(self, lab: LabFacts, *, quick: bool) -> list[Observation]:
        """Return what to vary, for a lab that can do it; `quick` asks for the few that matter most."""

    def expected_s(self, condition: Condition, lab: LabFacts) -> float:
        """Return about how long a trial takes, before any was done."""

    async def run(self, bench: Lab, condition: Condition) -> list[Observation]:
        """Do one trial with fresh guests and return what was seen; raises `TestbedError` if it failed."""
