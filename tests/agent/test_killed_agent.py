"""An agent is killed and started again while a controller uses it, over a real broker: its guests keep running."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from pathlib import Path

import msgspec
import psutil
import pytest
from support.deadlines import PATIENT_DEADLINES
from support.live import HANG_S, THROTTLED_CORES, until

from node_agent.programs.expected import expected_checksum
from node_agent.programs.task import Task
from testbed.bus.address import BrokerAddress
from testbed.bus.client import MqttBus
from testbed.bus.guest_details import GuestReport
from testbed.bus.messages import (
    AnyAction,
    GuestSpec,
    Hold,
    ImageRef,
    ListGuests,
    ProgramSpec,
    Release,
    Save,
    SetCaps,
    Start,
)
from testbed.bus.mosquitto import find_mosquitto, mosquitto_broker
from testbed.bus.requests import CommandFailedError
from testbed.errors import FailureCode, TestbedError
from testbed.lab.fleet import Fleet
from testbed.lab.job_guests import JobGuests, Unrecorded
from testbed.lab.leased import lease_lab
from testbed.lab.operations import Operations

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_mosquitto() is None, reason="Mosquitto is not installed"),
]
SPEC = GuestSpec(
    guest="dfrs-a", run="t", job=1, task=0, cpu_cores=1.0, memory_mib=96,
    program=ProgramSpec(name="eatcpu", work_units=40_000, units_per_iteration=200, seed=7),
)  # fmt: skip
CHECKSUM = expected_checksum(Task.from_spec(msgspec.to_builtins(SPEC)))
KILLS = 12
RANKS = tuple(
    msgspec.structs.replace(
        SPEC, guest=f"dfrs-r{rank}", task=rank,
        program=ProgramSpec(
            name="patterns", work_units=40_000, units_per_iteration=1000, seed=7, rank=rank, ranks=2, topology="ring",
            message_bytes=1000,
        ),
    )
    for rank in range(2)
)  # fmt: skip
START = Start(spec=SPEC, cap_cores=THROTTLED_CORES)
IMAGE = "a-1.img"


class Killed:
    """A lab of one node with one agent, and its controller."""

    def __init__(self, folder: Path, address: BrokerAddress, fleet: Fleet) -> None:
        self.fleet = fleet
        self.operations = Operations(fleet, PATIENT_DEADLINES)
        self.events: list[GuestReport] = []
        self.acts: list[object] = []
        self._folder = folder
        self._address = address
        self._process: asyncio.subprocess.Process | None = None
        fleet.on_guest_event = lambda _node, event: self.events.append(event)

    async def begin(self) -> None:
        with (self._folder / "agent.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "node_agent", "--lab", "t", "--node", "n0", "--memory-mib", "256", "--no-claim",
                "--state-dir", str(self._folder / "n0"), "--broker-from-stdin", stdin=asyncio.subprocess.PIPE,
                stderr=log, stdout=log,
            )  # fmt: skip
        assert self._process.stdin is not None
        self._process.stdin.write(self._address.url.encode() + b"\n")
        self._process.stdin.close()

    async def kill(self) -> None:
        """Kill the agent, and start the next one."""
        assert self._process is not None
        boot = self.fleet.nodes[0].boots[-1]
        self._process.kill()
        await self._process.wait()
        await self.begin()
        await until(lambda: self.fleet.nodes[0].boots[-1] != boot, "the next agent")

    async def end(self) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        await self._process.wait()

    async def do(self, action: AnyAction) -> dict[str, object]:
        return await self.fleet.call(0, action, HANG_S)

    async def guests(self) -> dict[str, str]:
        found = await self.do(ListGuests())
        return {guest["guest"]: guest["state"] for guest in found["guests"]}

    def programs(self) -> list[int]:
        """Return the processes of this agent's guests."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("DFRS_CONTROL", "").startswith(str(self._folder)):
                    found.append(process.pid)
        return found

    async def progress(self) -> None:
        await until(lambda: "progress" in [event.event for event in self.events], "progress")

    async def finish(self) -> None:
        """Let the guest work at full speed to its end, and check the result."""
        await self.do(SetCaps(caps={SPEC.guest: 1.0}))
        await self.done()

    async def done(self) -> None:
        await until(lambda: "done" in [event.event for event in self.events], "the end of the guest")
        (done,) = (event for event in self.events if event.event == "done")
        assert done.told["checksum"] == CHECKSUM
        assert done.told["verified"] is True
        assert not [event for event in self.events if event.event == "failed"]
        assert await self.guests() == {}
        await until(lambda: not self.programs(), "the end of its processes")

    async def interrupted(self, action: AnyAction, begun: Callable[[], object]) -> None:
        """Kill the agent during a command, once it has begun: the command fails because of the agent's restart."""
        command = asyncio.ensure_future(self.do(action))
        await until(begun, f"the beginning of {type(action).__name__}")
        await self.kill()
        with pytest.raises(CommandFailedError) as failed:
            await command
        assert failed.value.failure_code is FailureCode.AGENT_RESTARTED


@contextlib.asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Killed]:
    async with (
        mosquitto_broker(find_mosquitto(), folder / "broker") as address,
        MqttBus(address, "controller", keep_session=False) as bus,
        lease_lab(bus, "t", ["n0"], "controller", deadlines=PATIENT_DEADLINES) as leased,
    ):
        lab = Killed(folder, address, leased.fleet)
        await lab.begin()
        try:
            await leased.ready()
            yield lab
        finally:
            await lab.end()
    assert lab.programs() == []


def play(folder: Path, work: Callable[[Killed], Coroutine[None, None, None]]) -> None:
    async def main() -> None:
        async with opened(folder) as lab:
            await work(lab)

    asyncio.run(main())


def test_while_it_is_idle(tmp_path: Path) -> None:
    async def work(lab: Killed) -> None:
        await lab.kill()
        assert await lab.guests() == {}
        await lab.do(START)
        await lab.finish()

    play(tmp_path, work)


def test_while_a_guest_starts(tmp_path: Path) -> None:
    async def work(lab: Killed) -> None:
        await lab.interrupted(START, lab.programs)
        assert await lab.guests() == {}
        assert lab.programs() == []
        await lab.do(START)
        await lab.finish()

    play(tmp_path, work)


def test_while_a_guest_works(tmp_path: Path) -> None:
    async def work(lab: Killed) -> None:
        await lab.do(START)
        await lab.progress()
        before = lab.programs()
        assert len(before) == 1
        for _ in range(2):
            await lab.kill()
            assert await lab.guests() == {SPEC.guest: "running"}
            assert lab.programs() == before
        with pytest.raises(CommandFailedError, match=r"guest dfrs-a is there already"):
            await lab.do(START)
        await lab.finish()

    play(tmp_path, work)


def test_while_a_guest_comes_to_its_end(tmp_path: Path) -> None:
    async def work(lab: Killed) -> None:
        await lab.do(START)
        await lab.progress()
        (program,) = lab.programs()
        os.kill(program, signal.SIGSTOP)
        await lab.do(SetCaps(caps={SPEC.guest: 1.0}))
        assert lab._process is not None
        lab._process.kill()
        await lab._process.wait()
        os.kill(program, signal.SIGCONT)
        await until(lambda: psutil.Process(program).status() == psutil.STATUS_ZOMBIE, "its end")
        await lab.begin()
        await lab.done()

    play(tmp_path, work)


def test_while_a_guest_is_held(tmp_path: Path) -> None:
    async def work(lab: Killed) -> None:
        await lab.do(START)
        await lab.progress()
        held = await lab.do(Hold(guest=SPEC.guest))
        await lab.kill()
        assert await lab.guests() == {SPEC.guest: "held"}
        assert (await lab.do(Hold(guest=SPEC.guest)))["at"] == held["at"]
        await lab.do(Release(guest=SPEC.guest))
        await lab.finish()

    play(tmp_path, work)


def test_while_a_guest_is_saved_and_while_it_is_restored(tmp_path: Path) -> None:
    async def work(lab: Killed) -> None:
        await lab.do(START)
        await lab.progress()
        await lab.do(Hold(guest=SPEC.guest, image=IMAGE))
        (program,) = lab.programs()
        os.kill(program, signal.SIGSTOP)
        save = asyncio.ensure_future(lab.do(Save(guest=SPEC.guest, image=IMAGE)))
        while (await lab.guests())[SPEC.guest] != "saving":  # noqa: ASYNC110  # a state of another process
            await asyncio.sleep(0)
        await lab.kill()
        with pytest.raises(CommandFailedError):
            await save
        again = asyncio.ensure_future(lab.do(Save(guest=SPEC.guest, image=IMAGE)))
        with contextlib.suppress(ProcessLookupError):  # the next agent has continued it already
            os.kill(program, signal.SIGCONT)
        with contextlib.suppress(CommandFailedError):  # the guest was saved before this order arrived
            await again
        await until(lambda: not lab.programs(), "its end")
        assert await lab.guests() == {}
        path = tmp_path / "n0" / "images" / IMAGE
        image = ImageRef(image=IMAGE, bytes=path.stat().st_size, digest=digest_of(path))
        restore = Start(spec=SPEC, cap_cores=THROTTLED_CORES, image=image)
        await lab.interrupted(restore, lab.programs)
        assert await lab.guests() == {}
        await lab.do(restore)
        await lab.finish()

    play(tmp_path, work)


def has_ended(program: int) -> bool:
    return psutil.Process(program).status() == psutil.STATUS_ZOMBIE


@pytest.mark.long
def test_while_guests_are_saved_whose_saves_end_before_the_next_agent_begins(tmp_path: Path) -> None:
    specs = [msgspec.structs.replace(SPEC, guest=f"dfrs-{letter}") for letter in "ab"]

    async def work(lab: Killed) -> None:
        for spec in specs:
            await lab.do(Start(spec=spec, cap_cores=THROTTLED_CORES))
        await until(lambda: len({each.guest for each in lab.events if each.event == "progress"}) == 2, "progress")
        for spec in specs:
            await lab.do(Hold(guest=spec.guest, image=f"{spec.guest}.img"))
        programs = lab.programs()
        for program in programs:
            os.kill(program, signal.SIGSTOP)
        saves = [asyncio.ensure_future(lab.do(Save(guest=spec.guest, image=f"{spec.guest}.img"))) for spec in specs]
        while set((await lab.guests()).values()) != {"saving"}:  # noqa: ASYNC110  # a state of another process
            await asyncio.sleep(0)
        assert lab._process is not None
        lab._process.kill()
        await lab._process.wait()
        for program in programs:
            os.kill(program, signal.SIGCONT)
            await until(partial(has_ended, program), "its end")
        await lab.begin()
        for result in await asyncio.gather(*saves, return_exceptions=True):
            assert isinstance(result, CommandFailedError)
        found = await lab.do(ListGuests())
        assert {sample["guest"] for sample in found["guests"]} | {image[:6] for image in found["images"]} == {
            spec.guest for spec in specs
        }
        for spec in specs:
            assert (await lab.do(Hold(guest=spec.guest, image=f"{spec.guest}.img")))["saved"] is True
        assert await lab.guests() == {}

    play(tmp_path, work)


def parallel() -> JobGuests:
    return JobGuests(specs=RANKS, state=Unrecorded(running_on=(0, 0)))


async def end_of(lab: Killed) -> None:
    """Wait for the correct end of both ranks; none of their processes remains."""
    await until(lambda: len({each.guest for each in lab.events if each.event == "done"}) == 2, "the end of both ranks")
    for spec in RANKS:
        (checksum,) = {each.told["checksum"] for each in lab.events if (each.guest, each.event) == (spec.guest, "done")}
        assert checksum == expected_checksum(Task.from_spec(msgspec.to_builtins(spec)))
    assert not [each for each in lab.events if each.event == "failed"]
    await until(lambda: not lab.programs(), "the end of their processes")


async def ranks_at_work(lab: Killed) -> JobGuests:
    """Kill the agent while ranks work; return their job, which now runs at full speed."""
    job = parallel()
    await lab.operations.start(job, (0, 0), THROTTLED_CORES, ())
    await until(lambda: len({each.guest for each in lab.events if each.event == "progress"}) == 2, "progress")
    before = lab.programs()
    await lab.kill()
    assert sorted(lab.programs()) == sorted(before)
    await lab.operations.set_cap(job, 1.0)
    return job


def test_while_ranks_work(tmp_path: Path) -> None:
    async def work(lab: Killed) -> None:
        await ranks_at_work(lab)
        await end_of(lab)

    play(tmp_path, work)


@pytest.mark.long
def test_again_and_again_while_ranks_leave_mpi(tmp_path: Path) -> None:
    """The number of kills is bounded, because an agent needs a moment to pass a barrier and to check a result."""

    async def work(lab: Killed) -> None:
        await ranks_at_work(lab)
        for _ in range(KILLS):
            await lab.kill()
        await end_of(lab)

    play(tmp_path, work)


@pytest.mark.parametrize("programs", [1, pytest.param(2, marks=pytest.mark.long)])
def test_while_ranks_begin(tmp_path: Path, programs: int) -> None:
    async def work(lab: Killed) -> None:
        job = parallel()
        start = asyncio.ensure_future(lab.operations.start(job, (0, 0), 1.0, ()))
        await until(lambda: len(lab.programs()) >= programs, "ranks")
        await lab.kill()
        with contextlib.suppress(TestbedError):  # unless both had begun
            await start
            await end_of(lab)
            return
        assert await lab.guests() == {}
        assert lab.programs() == []
        await lab.operations.start(job, (0, 0), 1.0, ())
        await end_of(lab)

    play(tmp_path, work)


def digest_of(path: Path) -> str:
    from node_agent.programs.image import new_digest

    digest = new_digest()
    digest.update(path.read_bytes())
    return digest.hexdigest()
