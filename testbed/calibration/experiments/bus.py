"""How long a command that does nothing takes, from the controller to a node's agent and back."""

from __future__ import annotations

from testbed.calibration.experiment import Condition, LabFacts, Observation
from testbed.lab.lab import Lab

_PINGS = 50


class BusLatency:
    """Round trips over the broker while nothing else goes on."""

    name = "bus"
    about = "round trip of an empty command"

    def why_not(self, lab: LabFacts) -> str:  # noqa: ARG002  # every lab has a bus
        """Every lab can."""
        return ""

    def conditions(self, lab: LabFacts, *, quick: bool) -> list[Observation]:  # noqa: ARG002  # nothing is varied
        """Nothing is varied; the nodes are taken in turn."""
        return [{}]

    def expected_s(self, condition: Condition, lab: LabFacts) -> float:  # noqa: ARG002  # always the same
        """Return about how long a trial takes."""
        return 0.5

    async def run(self, bench: Lab, condition: Condition) -> list[Observation]:  # noqa: ARG002  # nothing is varied
        """Ping every node."""
        nodes = len(bench.facts)
        return [{"round_trip_s": await bench.ping(index % nodes)} for index in range(_PINGS)]


EXPERIMENT = BusLatency()
