"""Space for images on a node: reserved before a write, never promised twice, and released at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.disks import fill, small_disk

from node_agent.agent import Agent, AgentConfig
from node_agent.drivers.null import NullDriver
from node_agent.drivers.protocol import DriverError, SaveReport, SuspectError
from node_agent.image_space import ImageSpace
from node_agent.images import ImageStore
from testbed.bus.lease import token_digest
from testbed.bus.memory import MemoryHub
from testbed.bus.messages import (
    DropImage,
    FetchImage,
    GuestSpec,
    Hold,
    ImageRef,
    Lease,
    ProgramSpec,
    Release,
    Save,
    Start,
    Stop,
    encode,
)  # fmt: skip
from testbed.bus.no_room import NoRoom, NoRoomError, no_room_in
from testbed.bus.topics import lease_topic
from testbed.bus.traits import DriverTraits
from testbed.lab.virtual_time import run_in_virtual_time

DISK_MIB = 20
MIB = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", DISK_MIB) as place:
        yield place


class WritingDriver(NullDriver):
    """A driver whose images are as large as its guests, and which writes them when the test permits."""

    traits = DriverTraits()  # its images count, as those of real guests do

    def __init__(self) -> None:
        super().__init__("whole")
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.writes = asyncio.Event()

    async def save(self, guest: str, at: int | None, image: Path) -> SaveReport:
        self.writes.set()
        await self.may_write.wait()
        path = image.with_name(image.name + ".part")
        try:
            path.write_bytes(b"x" * (self._get(guest).spec.memory_mib * MIB))
        except OSError as error:
            raise DriverError(f"image {image}: {error.strerror}") from error
        path.replace(image)
        size = self._get(guest).spec.memory_mib * MIB
        await self.stop(guest)
        return SaveReport(size, "0" * 32, 0.0, 0.0, 0.0)


def agent_at(images: Path, state: Path, driver: NullDriver, budget_mib: int = 0) -> Agent:
    config = AgentConfig("t", "n0", 1.0, 1000, state, images, image_budget_mib=budget_mib)
    return Agent(config, driver, lambda presence: MemoryHub().client("agent", presence))


async def start(agent: Agent, guest: str, memory_mib: int) -> None:
    program = ProgramSpec(name="eatcpu", work_units=10**9, units_per_iteration=100, seed=1)
    spec = GuestSpec(guest=guest, run="t", job=1, task=0, program=program, cpu_cores=1.0, memory_mib=memory_mib)
    await agent.perform(Start(spec=spec, cap_cores=0.0))
    await agent.perform(Release(guest=guest))


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def in_real_time(main) -> None:
    asyncio.run(main())


def test_an_image_that_does_not_fit_is_refused_before_its_guest_is_held(disk: Path, tmp_path: Path) -> None:
    async def main() -> None:
        driver = WritingDriver()
        agent = agent_at(disk, tmp_path / "state", driver)
        await start(agent, "a", DISK_MIB + 1)
        with pytest.raises(NoRoomError, match=rf"^no room for image a\.img: 21 MiB needed, 20 MiB free in {disk}$"):
            await agent.perform(Hold(guest="a", image="a.img"))
        assert [sample.state for sample in driver.sample()] == ["running"]
        await agent.perform(Hold(guest="a"))
        with pytest.raises(NoRoomError, match="21 MiB needed, 20 MiB free"):
            await agent.perform(Save(guest="a", image="a.img"))
        assert names(disk) == []
        await agent.perform(Stop(guest="a"))

    in_real_time(main)


def test_two_saves_at_once_do_not_both_get_the_same_room(disk: Path, tmp_path: Path) -> None:
    async def main() -> None:
        driver = WritingDriver()
        agent = agent_at(disk, tmp_path / "state", driver)
        for guest in ("a", "b"):
            await start(agent, guest, 12)
        await agent.perform(Hold(guest="a", image="a.img"))
        assert agent._room.free_mib() == 20, "an incomplete image is not subtracted"
        with pytest.raises(NoRoomError, match="12 MiB needed, 8 MiB free"):
            await agent.perform(Hold(guest="b", image="b.img"))
        driver.may_write.clear()
        first = asyncio.create_task(agent.perform(Save(guest="a", image="a.img")))
        await driver.writes.wait()
        await agent.perform(Hold(guest="b"))
        with pytest.raises(NoRoomError, match="12 MiB needed, 7 MiB free"):  # a note needs a block of 4 KiB
            await agent.perform(Save(guest="b", image="b.img"))
        driver.may_write.set()
        await first
        assert agent._room.free_mib() == 7
        with pytest.raises(NoRoomError, match="12 MiB needed, 7 MiB free"):
            await agent.perform(Save(guest="b", image="b.img"))
        await agent.perform(DropImage(image="a.img"))
        await agent.perform(Save(guest="b", image="b.img"))
        assert sorted(names(disk)) == ["b.img", "b.img.json"]

    in_real_time(main)


@pytest.mark.parametrize("end", [Release(guest="a"), Stop(guest="a")])
def test_room_of_a_guest_that_is_not_saved_after_all_is_given_back(disk: Path, tmp_path: Path, end) -> None:
    async def main() -> None:
        agent = agent_at(disk, tmp_path / "state", WritingDriver())
        for guest in ("a", "b"):
            await start(agent, guest, 12)
        await agent.perform(Hold(guest="a", image="a.img"))
        await agent.perform(end)
        await agent.perform(Hold(guest="b", image="b.img"))
        await agent.perform(Save(guest="b", image="b.img"))

    in_real_time(main)


def test_a_disk_that_others_fill_meanwhile_is_a_refusal_too_and_nothing_is_left(disk: Path, tmp_path: Path) -> None:
    async def main() -> None:
        driver = WritingDriver()
        agent = agent_at(disk, tmp_path / "state", driver)
        await start(agent, "a", 12)
        await agent.perform(Hold(guest="a", image="a.img"))
        driver.may_write.clear()
        saving = asyncio.create_task(agent.perform(Save(guest="a", image="a.img")))
        await driver.writes.wait()
        fill(disk, 5 * MIB)
        driver.may_write.set()
        with pytest.raises(NoRoomError, match=r"12 MiB needed, \d MiB free in .*: No space left on device"):
            await saving
        assert names(disk) == ["ballast"]
        assert [sample.state for sample in driver.sample()] == ["held"]

    in_real_time(main)


def test_the_budget_counts_all_images_of_a_rehearsed_node_by_what_they_stand_for(tmp_path: Path) -> None:
    async def main() -> None:
        images = tmp_path / "images"
        config = AgentConfig(
            "t", "n0", 1.0, 1000, tmp_path, images, str(images), serve_images=False, image_budget_mib=100
        )
        agent = Agent(config, NullDriver("whole"), lambda presence: MemoryHub().client("agent", presence))
        running = asyncio.create_task(agent.run())
        await asyncio.sleep(1.0)
        for guest, free_mib in (("a", 40), ("b", 0)):
            await start(agent, guest, 60 if guest == "a" else 40)
            await agent.perform(Hold(guest=guest, image=f"{guest}.img"))
            await agent.perform(Save(guest=guest, image=f"{guest}.img"))
            assert agent._room.free_mib() == free_mib
        await start(agent, "c", 1)
        with pytest.raises(NoRoomError, match=r"1 MiB needed, 0 MiB free in \S+, whose budget is 100 MiB"):
            await agent.perform(Hold(guest="c", image="c.img"))
        away = ImageRef(image="d.img", bytes=40 * MIB, digest="0" * 32)
        with pytest.raises(NoRoomError, match="40 MiB needed, 0 MiB free"):
            await agent.perform(FetchImage(image=away, host=str(images), port=0))
        huge = ImageRef(image="e.img", bytes=1 << 40, digest="0" * 32)
        with pytest.raises(SuspectError, match=r"e\.img: it has 1099511627776 bytes: expected at most 2.*40 MiB$"):
            await agent.perform(FetchImage(image=huge, host=str(images), port=0, memory_mib=40))
        await agent.perform(DropImage(image="a.img"))
        assert agent._room.free_mib() == 60
        agent.stop()
        await running

    run_in_virtual_time(main())


def test_a_rehearsed_node_without_a_budget_has_no_limit(tmp_path: Path) -> None:
    room = ImageSpace(ImageStore(tmp_path))
    assert room.free_mib() is not None
    room.stands_for_more = True
    assert room.free_mib() is None
    room.reserve("a", "a.img", 1 << 30)


def test_a_folder_that_cannot_be_read_has_no_room(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "images")
    room = ImageSpace(store, 100)
    store.folder.rmdir()
    assert room.free_mib() == 0
    with pytest.raises(NoRoomError):
        room.reserve("a", "a.img", 1)


STEPS = st.lists(
    st.tuples(st.sampled_from(["reserve", "write", "release", "drop"]), st.integers(0, 4), st.integers(1, 60)),
    max_size=40,
)


@given(budget_mib=st.integers(1, 120), steps=STEPS)
def test_never_more_is_promised_than_the_budget_leaves(budget_mib: int, steps: list[tuple[str, int, int]]) -> None:
    with TemporaryDirectory() as folder:
        store = ImageStore(Path(folder))
        room = ImageSpace(store, budget_mib)
        room.stands_for_more = True
        promised: dict[int, int] = {}
        written: dict[int, int] = {}
        for what, number, mib in steps:
            holder, image = f"g{number}", f"g{number}.img"
            if what == "reserve" and number not in written:
                promised.pop(number, None)
                fits = sum(written.values()) + sum(promised.values()) + mib <= budget_mib
                if fits:
                    room.reserve(holder, image, mib)
                    promised[number] = mib
                else:
                    with pytest.raises(NoRoomError):
                        room.reserve(holder, image, mib)
            elif what == "write" and number in promised:
                store.path(image).write_bytes(b"x")
                room.written(holder, image, promised[number] * MIB)
                written[number] = promised.pop(number)
            elif what == "release":
                room.release(holder)
                promised.pop(number, None)
            elif what == "drop" and number not in promised:
                store.drop(image)
                written.pop(number, None)
            assert room.free_mib() == budget_mib - sum(written.values())
            assert sum(promised.values()) <= room.free_mib()


def test_a_refusal_reaches_the_controller_as_data() -> None:
    error = NoRoomError("a.img", "/images", 400, 100)
    assert no_room_in(error.result()) == NoRoom(needed_mib=400, free_mib=100)
    for other in ({}, {"no_room": None}, {"no_room": {"needed_mib": -1, "free_mib": 0}}, {"no_room": {"free_mib": 1}}):
        assert no_room_in(other) is None


@pytest.mark.parametrize(
    ("lease", "run", "kept"),
    [
        ("live", "", True), ("released", "", False), ("lapsed", "", False), ("none", "", False),
        ("lapsed", "aaaaaa", True), ("released", "aaaaaa", False),
    ],
)  # fmt: skip
def test_an_agent_that_ends_in_order_keeps_images_for_a_holder_that_may_return_alone(
    tmp_path: Path, lease: str, run: str, kept: bool
) -> None:
    async def main() -> None:
        hub = MemoryHub()
        images = tmp_path / "images"
        config = AgentConfig("t", "n0", 1.0, 100, tmp_path, images, str(images), serve_images=False)
        agent = Agent(config, NullDriver("whole"), lambda presence: hub.client("agent", presence))
        running = asyncio.create_task(agent.run())
        async with hub.client("controller") as bus:
            await asyncio.sleep(1.0)
            record = Lease(
                digest=token_digest("secret"), holder="c", ttl_s=30.0, expires_unix_s=1e12, on_controller_loss="keep",
                run=run,
            )  # fmt: skip
            if lease != "none":
                await bus.publish(lease_topic("t"), encode(record), qos=1, retain=True)
                await asyncio.sleep(1.0)
            await start(agent, "a", 60)
            await agent.perform(Hold(guest="a"))
            await agent.perform(Save(guest="a", image="a.img"))
            if lease == "released":
                let_go = msgspec.structs.replace(record, released=True, token="secret")  # noqa: S106  # made up
                await bus.publish(lease_topic("t"), encode(let_go), qos=1, retain=True)
            await asyncio.sleep(60.0 if lease == "lapsed" else 1.0)
            agent.stop()
            await running
        assert (images / "a.img").exists() == kept

    run_in_virtual_time(main())


def test_an_agent_that_heard_of_no_lease_keeps_what_its_predecessor_saved_for_one(tmp_path: Path) -> None:
    async def main() -> None:
        images = tmp_path / "images"
        images.mkdir()
        (images / "a.img").write_bytes(b"x")
        (images / "images-of").write_text('{"holder": "%s"}' % ("0" * 64))
        config = AgentConfig("t", "n0", 1.0, 100, tmp_path, images, str(images), serve_images=False)
        agent = Agent(config, NullDriver("whole"), lambda presence: MemoryHub().client("agent", presence))
        running = asyncio.create_task(agent.run())
        await asyncio.sleep(1.0)
        agent.stop()
        await running
        assert (images / "a.img").exists()

    run_in_virtual_time(main())
