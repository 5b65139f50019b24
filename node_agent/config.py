"""The settings of an agent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from node_agent.drivers.protocol import PREFIX, NodeBudget


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """Settings of a node, given when its agent starts."""

    lab: str
    node: str
    cpus: float
    memory_mib: int
    state_dir: Path
    image_dir: Path
    address: str = "127.0.0.1"
    telemetry_s: float = 1.0
    tls_dir: Path | None = None  # of this agent's certificate: images travel by TLS then
    serve_images: bool = True  # over TCP; else `address` is the image folder, which the other nodes can read
    image_budget_mib: int = 0  # of all images on its disk together; 0: no budget
    agent_memory_mib: int = 0  # most memory of the agent itself; 0: no bound
    keep_guests_s: float = 60.0  # after the agent was killed, until another one takes them over

    @property
    def budget(self) -> NodeBudget:
        """The budget of its driver."""
        return NodeBudget(
            self.node, self.cpus, self.memory_mib, self.state_dir, self.image_dir, self.address, PREFIX
        )  # fmt: skip
