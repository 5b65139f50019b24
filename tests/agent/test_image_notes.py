"""Notes of images: an image without a note is partial, and a repeated order for a saved guest gives the same result."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from node_agent.agent import Agent, AgentConfig
from node_agent.drivers.null import NullDriver
from node_agent.drivers.protocol import DriverError, ImageLostError, SaveReport
from node_agent.image_notes import ImageNote, begin_note, complete_note, finish_note, note_path, read_note
from node_agent.kept_images import KeptImages
from node_agent.stores import MEMORY, ImageStores
from testbed.bus.memory import MemoryHub
from testbed.bus.messages import (
    DropImage,
    GuestSpec,
    Hold,
    ImageRef,
    ListGuests,
    ProgramSpec,
    Release,
    Save,
    Start,
    Stop,
)
from testbed.lab.virtual_time import run_in_virtual_time


class Dying(NullDriver):
    """Writes an image, and dies with its agent before it reports the save."""

    dies = False

    async def save(self, guest: str, at: int | None, image: Path) -> SaveReport:
        report = await super().save(guest, at, image)
        if self.dies:
            raise asyncio.CancelledError
        return report


def node(folder: Path, driver: NullDriver) -> Agent:
    """Return an agent with that folder, without a bus."""
    config = AgentConfig("t", "n0", 1.0, 1000, folder / "state", folder / "images", str(folder), serve_images=False)
    return Agent(config, driver, lambda presence: MemoryHub().client("agent", presence))


async def started(agent: Agent, guest: str = "a") -> None:
    program = ProgramSpec(name="eatcpu", work_units=10**9, units_per_iteration=100, seed=1)
    spec = GuestSpec(guest=guest, run="t", job=1, task=0, program=program, cpu_cores=1.0, memory_mib=60)
    await agent.perform(Start(spec=spec, cap_cores=1.0))


def test_a_repeated_save_of_a_guest_that_has_left_gives_its_report_also_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        agent = node(tmp_path, NullDriver())
        await started(agent)
        await asyncio.sleep(2.0)
        held = await agent.perform(Hold(guest="a", image="a-s1.img"))
        assert held.keys() == {"at", "wall_ns"}
        order = Save(guest="a", image="a-s1.img", at=int(str(held["at"])) + 5)
        report = await agent.perform(order)
        for again in (agent, node(tmp_path, NullDriver())):
            assert await again.perform(order) == report
            told = await again.perform(Hold(guest="a", image="a-s1.img"))
            assert (told["at"], told["saved"]) == (order.at, True)
            assert (await again.perform(ListGuests()))["images"] == ["a-s1.img"]
            with pytest.raises(DriverError, match="guest a: not here"):
                await again.perform(Hold(guest="a", image="a-s2.img"))
            with pytest.raises(DriverError, match="guest b: not here"):
                await again.perform(Save(guest="b", image="a-s1.img"))
        await agent.perform(DropImage(image="a-s1.img"))
        assert list((tmp_path / "images").iterdir()) == []

    run_in_virtual_time(main())


def test_an_image_without_a_note_is_never_restored_and_goes_with_its_guest(tmp_path: Path) -> None:
    async def main() -> None:
        agent = node(tmp_path, NullDriver())
        await started(agent)
        await agent.perform(Hold(guest="a"))
        report = await agent.perform(Save(guest="a", image="a.img"))
        image = ImageRef(image="a.img", bytes=int(str(report["bytes"])), digest=str(report["digest"]))
        path = tmp_path / "images" / "a.img"
        note_path(path).unlink()
        assert (await agent.perform(ListGuests()))["images"] == []
        spec = GuestSpec(
            guest="a", run="t", job=1, task=0, cpu_cores=1.0, memory_mib=60,
            program=ProgramSpec(name="eatcpu", work_units=10**9, units_per_iteration=100, seed=1),
        )  # fmt: skip
        with pytest.raises(ImageLostError, match=r"image a\.img: it is not complete"):
            await agent.perform(Start(spec=spec, cap_cores=1.0, image=image))
        begin_note(path, ImageNote(guest="a", at=7))
        await agent.perform(Stop(guest="b"))
        assert path.exists()
        await agent.perform(Stop(guest="a"))
        assert not path.exists()
        assert not note_path(path).exists()

    run_in_virtual_time(main())


def test_an_image_that_a_killed_agent_wrote_to_its_end_is_noted_by_the_next_one(tmp_path: Path) -> None:
    async def main() -> None:
        driver = Dying()
        agent = node(tmp_path, driver)
        await started(agent)
        await agent.perform(Hold(guest="a", image="a.img"))
        driver.dies = True
        with pytest.raises(asyncio.CancelledError):
            await agent._perform(Save(guest="a", image="a.img", at=3))
        path = tmp_path / "images" / "a.img"
        assert complete_note(path) is None
        begun = read_note(path)
        assert begun is not None
        assert (begun.guest, begun.at, begun.digest) == ("a", 3, "")
        after = node(tmp_path, NullDriver())
        told = await after.perform(Hold(guest="a", image="a.img"))
        assert (told["at"], told["saved"]) == (3, True)
        report = await after.perform(Save(guest="a", image="a.img", at=3))
        assert report["bytes"] == 60 << 20
        assert (await after.perform(ListGuests()))["images"] == ["a.img"]

    run_in_virtual_time(main())


@pytest.mark.parametrize("change", [{"boot": "another"}, {"at": 4}, {"guest": "b"}])
def test_what_was_written_before_a_boot_or_of_another_guest_is_not_noted(
    tmp_path: Path, change: dict[str, object]
) -> None:
    async def main() -> None:
        driver = Dying()
        agent = node(tmp_path, driver)
        await started(agent)
        await agent.perform(Hold(guest="a"))
        driver.dies = True
        with pytest.raises(asyncio.CancelledError):
            await agent._perform(Save(guest="a", image="a.img", at=3))
        path = note_path(tmp_path / "images" / "a.img")
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        after = node(tmp_path, NullDriver())
        assert (await after.perform(ListGuests()))["images"] == []
        with pytest.raises(DriverError, match="guest a: not here"):
            await after.perform(Hold(guest="a", image="a.img"))

    run_in_virtual_time(main())


def test_a_save_overwrites_what_an_earlier_one_left(tmp_path: Path) -> None:
    async def main() -> None:
        agent = node(tmp_path, NullDriver())
        await started(agent)
        path = tmp_path / "images" / "a.img"
        path.write_bytes(b"half")
        finish_note(path, ImageNote(guest="a", digest="0" * 32))
        assert complete_note(path) is not None
        await agent.perform(Hold(guest="a", image="a.img"))
        report = await agent.perform(Save(guest="a", image="a.img"))
        note = complete_note(path)
        assert note is not None
        assert note.digest == report["digest"] != "0" * 32

    run_in_virtual_time(main())


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff", b'{"version": 2, "digest": "0"}', b'{"bytes": -1}', b'{"digest": 5}']
)
def test_a_note_that_makes_no_sense_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.img"
    path.write_bytes(b"x")
    note_path(path).write_bytes(content)
    assert complete_note(path) is None


def test_an_image_of_another_size_than_noted_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "a.img"
    path.write_bytes(b"xyz")
    finish_note(path, ImageNote(digest="0"))
    assert complete_note(path) is not None
    path.write_bytes(b"xy")
    assert complete_note(path) is None


def test_images_go_with_their_notes_and_the_drafts_of_killed_agents(tmp_path: Path) -> None:
    stores = ImageStores(tmp_path / "images")
    stores.rehearse_memory()
    for image, store in (("a.img", ""), ("b.img", MEMORY)):
        path = stores.place(image, store, 1)
        stores.begin(path, ImageNote(guest="g"))
        path.write_bytes(b"x")
        assert image not in stores.all()
        stores.finish(path, ImageNote(guest="g", digest="0"))
    assert stores.all() == ["a.img", "b.img"]
    draft = tmp_path / "images" / ".c.img.json.77.part"
    draft.touch()
    assert stores.disk.all() == [tmp_path / "images" / "a.img"]
    stores.drop("b.img")
    assert stores.all() == ["a.img"]
    ImageStores(tmp_path / "images")
    assert not draft.exists()
    KeptImages(stores, lambda _run: False).clear()
    assert list((tmp_path / "images").iterdir()) == list((tmp_path / "images.memory").iterdir()) == []


def test_a_guest_that_is_released_goes_on_although_an_image_was_begun(tmp_path: Path) -> None:
    async def main() -> None:
        agent = node(tmp_path, NullDriver())
        await started(agent)
        begin_note(tmp_path / "images" / "a.img", ImageNote(guest="a", at=0))
        (tmp_path / "images" / "a.img").write_bytes(b"half")
        assert "saved" not in await agent.perform(Hold(guest="a", image="a.img"))
        await agent.perform(Release(guest="a"))

    run_in_virtual_time(main())
