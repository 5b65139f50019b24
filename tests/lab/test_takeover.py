"""`testbed lab who` and `testbed lab take` against a real broker and a real agent process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.deadlines import PATIENT_DEADLINES
from support.live import HANG_S

from testbed.bus.broker import broker
from testbed.bus.client import MqttBus
from testbed.bus.messages import (
    GuestSpec,
    ListGuests,
    OnControllerLoss,
    ProgramSpec,
    Start,
)
from testbed.bus.telemetry import guests_in
from testbed.errors import UserError
from testbed.lab.fleet import Fleet
from testbed.lab.lease import LeaseTakenError
from testbed.lab.leased import lease_lab

pytestmark = pytest.mark.slow
RUNS_OUT_S = 15.0  # speed: the lease of a controller that will die; the test waits for its expiry
HELD_S = 5.0  # after that time, the test checks that the guest still exists
SPEC = GuestSpec(
    guest="dfrs-a", run="t", job=1, task=0, cpu_cores=1.0, memory_mib=10,
    program=ProgramSpec(name="eatcpu", work_units=10**12, units_per_iteration=100, seed=1),
)  # fmt: skip


@dataclass
class Lab:
    url: str
    state: Path

    async def command(self, *words: str) -> tuple[int, str, str]:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "testbed", "lab", *words, "--broker", self.url,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        out, err = await child.communicate()
        return child.returncode or 0, out.decode(), err.decode()

    @contextlib.asynccontextmanager
    async def driven(
        self, on_controller_loss: OnControllerLoss = "remove", empty_within_s: float = HANG_S, ttl_s: float = HANG_S
    ) -> AsyncIterator[Fleet]:
        """Control the lab with a working guest."""
        deadlines = PATIENT_DEADLINES.model_copy(update={"lease_ttl_s": ttl_s})
        async with (
            MqttBus(_address(self.url), "driver", keep_session=False) as bus,
            lease_lab(bus, "t", ["n1"], "driver", deadlines=deadlines, on_controller_loss=on_controller_loss) as leased,
        ):
            fleet = leased.fleet
            await leased.announced()
            await fleet.wait_until_empty(empty_within_s)
            await fleet.call(0, Start(spec=SPEC, cap_cores=0.5, verify=False), HANG_S)
            yield fleet


def _address(url: str) -> object:
    from testbed.bus.address import BrokerAddress

    return BrokerAddress.parse(url)


def play(tmp_path: Path, work: Callable[[Lab], object]) -> None:
    async def main() -> None:
        async with asyncio.timeout(HANG_S), broker("mosquitto", state_dir=tmp_path / "broker") as running:
            url = running.address.url
            with (tmp_path / "agent.log").open("wb") as log:
                agent = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "node_agent", "--lab", "t", "--node", "n1", "--driver", "null",
                    "--memory-mib", "100", "--state-dir", str(tmp_path / "n1"), "--broker-from-stdin",
                    stdin=subprocess.PIPE, stderr=log,
                )  # fmt: skip
            assert agent.stdin is not None
            agent.stdin.write(url.encode() + b"\n")
            agent.stdin.close()
            try:
                await work(Lab(url, tmp_path))
            finally:
                agent.terminate()
                await agent.wait()

    asyncio.run(main())


def test_who_drives_is_told_and_the_lab_can_be_taken(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        code, out, _ = await lab.command("who", "t")
        assert (code, out.splitlines()[0]) == (1, "lab t: no controller has driven it yet")
        taken = asyncio.Event()

        async def drive() -> None:
            async with lab.driven():
                taken.set()
                await asyncio.Event().wait()

        driving = asyncio.create_task(drive())
        await taken.wait()
        found = {"nodes": []}
        while not any(node["guests"] for node in found["nodes"]):  # the agent reports guests once per second
            code, out, _ = await lab.command("who", "t", "--json")
            found = json.loads(out)
        assert code == 0
        assert found["held"]
        assert found["holder"].endswith(f":{os.getpid()}")
        assert 0 < found["left_s"] <= HANG_S
        assert found["nodes"] == [{"node": "n1", "online": True, "reason": "", "guests": ["dfrs-a"]}]
        code, out, err = await lab.command("take", "t")
        assert code == 2
        assert "is driven by" in err
        assert not driving.done()
        code, out, err = await lab.command("take", "t", "--force")
        assert (code, out) == (0, out), err
        assert "lab t is free" in out
        with pytest.raises(LeaseTakenError, match=r"was taken by local \(.*@.*\): its guests are destroyed"):
            await driving
        code, out, _ = await lab.command("who", "t")
        assert code == 1
        assert "n1: online, guests: -" in out

    play(tmp_path, work)


def test_guests_of_a_controller_that_died_are_kept_if_that_was_wanted_until_the_lab_is_taken(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        driver = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _DIES, lab.url, stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(_IMPORTS)},
        )  # fmt: skip
        assert driver.stdout is not None
        assert await driver.stdout.readline() == b"started\n"
        driver.kill()
        await driver.wait()
        while (await lab.command("who", "t"))[0] == 0:
            pass
        with pytest.raises(
            UserError, match="node n1 holds dfrs-a: guests and images of a run whose controller died: continue it"
        ):
            async with lab.driven(empty_within_s=HELD_S):
                raise AssertionError("the lab was treated as empty")
        code, out, err = await lab.command("take", "t")
        assert code == 0, err
        assert "lab t is free: 1 guests removed" in out
        async with lab.driven() as fleet:
            (sample,) = guests_in(await fleet.call(0, ListGuests(), HANG_S))
            assert sample.state == "running"

    play(tmp_path, work)


_TESTS = Path(__file__).parents[1]
_IMPORTS = [str(_TESTS / "lab"), str(_TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
_DIES = """
import asyncio, sys
from pathlib import Path
from test_takeover import RUNS_OUT_S, Lab

async def main():
    async with Lab(sys.argv[1], Path()).driven("pause", ttl_s=RUNS_OUT_S):
        print("started", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
