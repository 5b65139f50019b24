"""A whole container sees one folder of its node, read-only. A fake engine records its parameters."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.containers.container_images import SPEC

pytest.importorskip("docker", reason="the SDK of Docker is not installed")

from node_agent.drivers.containers.driver import DockerDriver
from node_agent.drivers.containers.engine import Engine
from node_agent.drivers.protocol import NodeBudget


class Told:
    """A fake of the SDK's client; `made` has the parameters of the created container."""

    def __init__(self) -> None:
        self.containers = self
        self.made: dict[str, object] = {}
        self.id = "c"

    def create(self, *_words: object, **told: object) -> Told:
        self.made = told
        return self


def test_it_sees_its_own_socket_and_no_other_guest(tmp_path: Path) -> None:
    budget = NodeBudget("n", 1.0, 1000, tmp_path / "s", tmp_path / "i", "127.0.0.1", "dfrs-t-")
    engine, told = Engine(None), Told()
    engine._budget, engine._client = budget, told  # type: ignore[assignment]
    name = Path(DockerDriver().socket_name("g"))
    assert name != Path(DockerDriver().socket_name("h"))
    assert name.name == "c.sock"  # the same on every node, as CRIU restores the connection to this path
    assert len(str(name)) < 20
    asyncio.run(engine.make_whole("g.1", SPEC, ["x"], {}, budget.state_dir / name.parent))
    mounts = told.made["mounts"]
    assert isinstance(mounts, list)
    assert all(mount["ReadOnly"] for mount in mounts)
    (own,) = [mount for mount in mounts if mount["Target"] == "/dfrs"]
    assert own["Source"] == str(tmp_path / "s" / name.parent)
    assert str(budget.state_dir) not in [mount["Source"] for mount in mounts]
