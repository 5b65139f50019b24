"""Real guests of a real agent: saved to memory, restored cold, watched, and run beside programs on the node itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.live import ENDLESS_UNITS, HANG_S

from node_agent.agent import Agent, AgentConfig
from node_agent.drivers.process import ProcessDriver
from node_agent.drivers.protocol import DriverError
from node_agent.stores import tmpfs
from testbed.bus.memory import MemoryHub
from testbed.bus.messages import (
    CapChange,
    DropImage,
    GuestSpec,
    Hold,
    ImageRef,
    NodeStatus,
    ProgramSpec,
    Save,
    Start,
    Stop,
    Watch,
    decode,
)

pytestmark = [pytest.mark.slow, pytest.mark.skipif(tmpfs() is None, reason="this machine has no tmpfs to write to")]
PROGRAM = ProgramSpec(name="eatcpu", work_units=ENDLESS_UNITS, units_per_iteration=100, seed=1, touched_frac=0.5)
SPEC = GuestSpec(guest="a", run="t", job=1, task=0, program=PROGRAM, cpu_cores=1.0, memory_mib=128)


def test_commands_of_calibrations_do_what_they_say(tmp_path: Path) -> None:
    statuses: asyncio.Queue[NodeStatus] = asyncio.Queue()

    async def hear(topic: str, payload: bytes) -> None:
        statuses.put_nowait(decode(NodeStatus, payload, topic))

    async def play(agent: Agent) -> None:
        facts = (await statuses.get()).facts
        assert facts is not None
        assert facts.image_stores == ("disk", "memory")
        assert "native" in facts.capabilities
        assert await agent.perform(Start(spec=SPEC, cap_cores=1.0)) == {}
        action = Watch(guests=("a",), every_s=0.02, for_s=1.0, caps=(CapChange(after_s=0.5, caps={"a": 0.25}),))
        watched = await agent.perform(action)
        assert watched["cap_changes"][0]["caps"] == {"a": pytest.approx(0.25)}
        for store, cached in (("memory", 1.0), ("disk", 0.0)):
            await agent.perform(Hold(guest="a"))
            with pytest.raises(DriverError, match="image store 'tape': expected one of disk, memory"):
                await agent.perform(Save(guest="a", image="a.img", at=None, store="tape"))
            saved = await agent.perform(Save(guest="a", image="a.img", at=None, store=store))
            assert 20 << 20 < int(str(saved["bytes"])) < 70 << 20  # half of the memory beyond the program's own
            image = ImageRef(image="a.img", bytes=int(str(saved["bytes"])), digest=str(saved["digest"]))
            found = await agent.perform(Start(spec=SPEC, cap_cores=1.0, image=image, cold=True))
            assert found == {"cached_frac": pytest.approx(cached, abs=0.05)}
        await agent.perform(Stop(guest="a"))
        warm = await agent.perform(Start(spec=SPEC, cap_cores=1.0, image=image))
        assert warm == {"cached_frac": pytest.approx(1.0, abs=0.05)}  # the image was just read
        await agent.perform(Stop(guest="a"))
        await agent.perform(DropImage(image="a.img"))

    async def main() -> None:
        hub = MemoryHub()
        config = AgentConfig("t", "n", 2.0, 256, tmp_path / "s", tmp_path / "i", telemetry_s=60.0)
        agent = Agent(config, ProcessDriver(), lambda presence: hub.client("agent", presence))
        async with hub.client("test") as bus:
            await bus.subscribe("#", hear)
            running = asyncio.create_task(agent.run())
            try:
                async with asyncio.timeout(HANG_S):
                    await play(agent)
            finally:
                memory = agent._stores._stores["memory"].folder
                assert memory.exists()
                agent.stop()
                await running
        assert not memory.exists()
        assert list((tmp_path / "i").iterdir()) == []

    asyncio.run(main())
