"""A crash at any byte of a save, a transfer, a repair or a removal: no partial image counts, no sole copy is lost."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from support.agent.crash_disk import Left, Recording, SyncFile, SyncFolder
from support.agent.image_nodes import digest_of

from node_agent.agent import Agent, AgentConfig
from node_agent.drivers.null import NullDriver
from node_agent.drivers.process import _written
from node_agent.drivers.protocol import SaveReport
from node_agent.drivers.sealed import seal
from node_agent.image_notes import ImageNote, begin_note, complete_note
from node_agent.image_server import ImageServer
from node_agent.image_tickets import Tickets
from node_agent.images import ImageStore
from node_agent.programs.image import ImageError, ImageReader, write_image
from node_agent.stores import ImageStores
from testbed.bus.lease import token_digest
from testbed.bus.memory import MemoryHub
from testbed.bus.messages import (
    DropImage,
    FetchImage,
    GuestSpec,
    Hold,
    ImageRef,
    ListGuests,
    OfferImage,
    ProgramSpec,
    Save,
)
from testbed.bus.traits import DriverTraits
from testbed.errors import TestbedError

IMAGE = "a-s1.img"
AT = 7
MEMORY = bytes(range(256)) * 3
GONE, REPLIED = "guest gone", "replied"
SPEC = GuestSpec(
    guest="a", run="t", job=1, task=0, cpu_cores=1.0, memory_mib=1,
    program=ProgramSpec(name="eatcpu", work_units=10**9, units_per_iteration=100, seed=1),
)  # fmt: skip


class ImagingDriver(NullDriver):
    """Writes images as the programs of guests do; a guest ends once its image has its name, even without its agent."""

    traits = DriverTraits()
    recording: Recording | None = None

    async def save(self, guest: str, at: int | None, image: Path) -> SaveReport:
        written = write_image(image, {"iteration": at}, [memoryview(MEMORY)])
        await self._leave(guest)
        return SaveReport(written.bytes, written.digest, 0.0, written.write_s, written.sync_s)

    async def _leave(self, guest: str) -> None:
        await self.stop(guest)
        if self.recording is not None:
            self.recording.mark(GONE)

    async def finished_save(self, guest: str, at: int | None, image: Path) -> SaveReport | None:
        return None if guest in self._guests else _written(at, image)


class HypervisorDriver(ImagingDriver):
    """Writes images as QEMU does: under their final name, with a header that is changed last, and without a sync."""

    async def save(self, guest: str, at: int | None, image: Path) -> SaveReport:
        del at
        with image.open("wb", buffering=0) as file:
            file.write(b"Part")
            for begin in range(0, len(MEMORY), 256):
                file.write(MEMORY[begin : begin + 256])
                if not begin:
                    os.fdatasync(file.fileno())
            file.seek(0)
            file.write(b"Save")
        await self._leave(guest)
        return await seal(image, 0.0)

    async def finished_save(self, guest: str, at: int | None, image: Path) -> SaveReport | None:
        del at
        there = guest not in self._guests and image.read_bytes()[:4] == b"Save"  # noqa: ASYNC240  # of a test
        return await seal(image, 0.0) if there else None


KIND: list[type[ImagingDriver]] = [ImagingDriver]


def node(folder: Path, *, guest: bool) -> Agent:
    """An agent of a folder, with the guest held or without it."""
    driver = KIND[-1]()
    config = AgentConfig("t", "n0", 1.0, 1000, folder / "state", folder / "images")
    agent = Agent(config, driver, lambda presence: MemoryHub().client("agent", presence))
    if guest:
        held = driver._put(SPEC, 1.0, 0.0)
        held.runs = held.held = True
        agent._residents.found(SPEC)
    return agent


def written(folder: Path, at: int = AT) -> bytes:
    """Return the correct image of the guest at an iteration."""
    if KIND[-1] is HypervisorDriver:
        return b"Save" + MEMORY
    folder.mkdir(parents=True, exist_ok=True)
    write_image(folder / "right.img", {"iteration": at}, [memoryview(MEMORY)])
    return (folder / "right.img").read_bytes()


async def images_of(agent: Agent, right: bytes) -> list[str]:
    """Return the complete images; assert that each is correct, and matches the digest in its note."""
    found = (await agent.perform(ListGuests()))["images"]
    assert isinstance(found, list)
    for name in found:
        path = agent._stores.complete(name)
        note = complete_note(path)
        assert path.read_bytes() == right
        assert note is not None
        assert (note.digest, note.bytes) == (digest_of(right), len(right))
    return found


class Crashes:
    """Records an operation of an agent, and examines the state after each crash with another agent."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.recording = Recording(folder / "0" / "images")
        self._patch = patch
        self._boot("first")
        self.right = written(folder / "right")
        self.looked = 0

    def _boot(self, name: str) -> None:
        self._patch.setattr("node_agent.image_notes._boot", lambda: name)

    async def record(self, act: Callable[[Agent], Awaitable[None]], *, guest: bool) -> None:
        agent = node(self.folder / "0", guest=guest)
        agent._driver.recording = self.recording
        with self.recording.active():
            await act(agent)

    async def each(self, look: Callable[[Left, Path, bool], Awaitable[None]]) -> None:
        """Restore the state after each crash, and examine it; the last argument is whether the machine lost power."""
        for boot, lefts in (("first", self.recording.killed()), ("second", self.recording.unpowered())):
            self._boot(boot)
            for left in lefts:
                self.looked += 1
                place = self.folder / f"c{self.looked}"
                left.lay_out(place / "images")
                try:
                    await look(left, place, boot == "second")
                except BaseException as error:
                    error.add_note(
                        f"{left.where}, after {set(left.marks)}: { ({n: len(c) for n, c in left.files.items()}) }"
                    )
                    raise
        assert self.looked >= 8


async def save(agent: Agent) -> dict[str, object]:
    await agent.perform(Hold(guest="a", image=IMAGE))
    return await agent.perform(Save(guest="a", image=IMAGE, at=AT))


def search_saves(
    tmp_path: Path,
    patch: pytest.MonkeyPatch,
    before: dict[str, bytes],
    without: type[SyncFile | SyncFolder] | None = None,
) -> None:
    """Examine the state after every crash of a save; operations of the kind `without` are ignored."""

    async def main() -> None:
        crashes = Crashes(tmp_path, patch)
        Left(before, frozenset(), "").lay_out(tmp_path / "0" / "images")

        async def act(agent: Agent) -> None:
            await save(agent)
            crashes.recording.mark(REPLIED)

        async def look(left: Left, place: Path, unpowered: bool) -> None:  # see `Crashes.each`
            alive = GONE not in left.marks and not unpowered
            images = await images_of(node(place, guest=alive), crashes.right)
            if REPLIED in left.marks or (GONE in left.marks and not unpowered):
                assert images == [IMAGE]
            if (alive or images) and crashes.looked % 4 == 0:  # for some of the crashes, repeat the same order
                report = await save(node(place, guest=alive))
                assert report["digest"] == digest_of(crashes.right)
                assert await images_of(node(place, guest=False), crashes.right) == [IMAGE]

        await crashes.record(act, guest=True)
        if without is not None:
            crashes.recording.events = [each for each in crashes.recording.events if not isinstance(each, without)]
        await crashes.each(look)

    asyncio.run(main())


@pytest.fixture(params=[ImagingDriver, HypervisorDriver])
def _kind(request: pytest.FixtureRequest) -> Iterator[None]:
    KIND.append(request.param)
    yield
    KIND.pop()


@pytest.mark.usefixtures("_kind")
@pytest.mark.parametrize("before", [{}, {IMAGE: b"half"}, {f"{IMAGE}.part": b"half"}])
def test_a_crash_in_a_save_leaves_the_guest_or_a_complete_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: dict[str, bytes]
) -> None:
    search_saves(tmp_path, monkeypatch, before)


@pytest.mark.usefixtures("_kind")
@pytest.mark.parametrize("without", [SyncFile, SyncFolder])
def test_the_search_finds_a_save_that_does_not_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: type[SyncFile | SyncFolder]
) -> None:
    with pytest.raises((AssertionError, TestbedError)):
        search_saves(tmp_path, monkeypatch, {}, without)


@pytest.mark.parametrize(
    ("kind", "what", "change"),
    [
        (ImagingDriver, "node_agent.images.complete_note", lambda path: path.suffix == ".img" or None),
        (ImagingDriver, "node_agent.image_orders.is_recent", lambda _note: False),
        (HypervisorDriver, "node_agent.image_orders.is_recent", lambda _note: False),
        (HypervisorDriver, "node_agent.image_orders.is_recent", lambda _note: True),
    ],
    ids=["images count without notes", "no save is completed", "no save of QEMU is completed", "any boot will do"],
)
def test_the_search_finds_other_mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[ImagingDriver], what: str, change: Callable[..., object]
) -> None:
    monkeypatch.setattr(what, change)
    KIND.append(kind)
    try:
        with pytest.raises((AssertionError, TestbedError)):
            search_saves(tmp_path, monkeypatch, {})
    finally:
        KIND.pop()


def test_a_crash_in_a_save_over_an_older_image_of_that_name_never_gives_the_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        crashes = Crashes(tmp_path, monkeypatch)
        older = node(tmp_path / "0", guest=True)
        await older.perform(Hold(guest="a", image=IMAGE))
        await older.perform(Save(guest="a", image=IMAGE, at=AT - 1))
        earlier = (tmp_path / "0" / "images" / IMAGE).read_bytes()

        async def act(agent: Agent) -> None:
            await save(agent)
            crashes.recording.mark(REPLIED)

        async def look(left: Left, place: Path, unpowered: bool) -> None:  # see `Crashes.each`
            alive = GONE not in left.marks and not unpowered
            agent = node(place, guest=alive)
            path = place / "images" / IMAGE
            is_older = path.exists() and path.read_bytes() == earlier
            images = await images_of(agent, earlier if is_older else crashes.right)
            if is_older and images:
                assert GONE not in left.marks, "the guest has continued, and has no save of its new state"
            if REPLIED in left.marks or (GONE in left.marks and not unpowered):
                assert images == [IMAGE]

        await crashes.record(act, guest=True)
        await crashes.each(look)

    asyncio.run(main())


@pytest.mark.parametrize("before", [{}, {f"{IMAGE}.part": 100}, {IMAGE: 100}])
def test_a_crash_in_a_transfer_leaves_a_complete_copy_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: dict[str, int]
) -> None:
    async def main() -> None:
        crashes = Crashes(tmp_path, monkeypatch)
        right = crashes.right
        Left({name: right[:size] for name, size in before.items()}, frozenset(), "").lay_out(tmp_path / "0" / "images")
        ref = ImageRef(image=IMAGE, bytes=len(right), digest=digest_of(right))
        source, tickets = ImageStore(tmp_path / "source"), Tickets(asyncio.get_running_loop().time)
        source.path(IMAGE).write_bytes(right)
        server = ImageServer(source.path, tickets)
        await server.open("127.0.0.1")

        async def act(agent: Agent) -> None:
            tickets.offer(OfferImage(image=ref, ticket_digest=token_digest("t"), to="b", for_s=1e6))
            await agent.perform(FetchImage(image=ref, host="127.0.0.1", port=server.port, ticket="t"))
            crashes.recording.mark(REPLIED)

        async def look(left: Left, place: Path, unpowered: bool) -> None:  # see `Crashes.each`
            images = await images_of(node(place, guest=False), right)
            assert images == [IMAGE] if REPLIED in left.marks else images in ([], [IMAGE])
            if crashes.looked % 5 == 0:  # for some of the crashes, also continue the operation
                await act(node(place, guest=False))
                assert await images_of(node(place, guest=False), right) == [IMAGE]

        try:
            await crashes.record(act, guest=False)
            await crashes.each(look)
        finally:
            await server.close()
        assert source.path(IMAGE).read_bytes() == right

    asyncio.run(main())


def test_a_crash_while_an_image_is_removed_leaves_all_of_it_or_none_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        crashes = Crashes(tmp_path, monkeypatch)
        await save(node(tmp_path / "0", guest=True))

        async def act(agent: Agent) -> None:
            await agent.perform(DropImage(image=IMAGE))

        async def look(_left: Left, place: Path, _unpowered: bool) -> None:  # see `Crashes.each`
            agent = node(place, guest=False)
            assert await images_of(agent, crashes.right) in ([], [IMAGE])
            await agent.perform(DropImage(image=IMAGE))
            assert not list((place / "images").iterdir())

        await crashes.record(act, guest=False)
        await crashes.each(look)

    asyncio.run(main())


ORDERS = 8


@pytest.mark.parametrize("noting", [False, True], ids=["orders alone", "beside its last word"])
def test_orders_at_the_same_time_find_an_image_that_a_killed_agent_has_written_and_not_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noting: bool
) -> None:
    """A resumed save, lists of images, and the end of the surviving guest: one of them completes the note."""
    finished: list[str] = []
    finish = ImageStores.finish

    def counted(stores: ImageStores, image: Path, note: ImageNote) -> None:
        finished.append(image.name)
        finish(stores, image, note)

    monkeypatch.setattr(ImageStores, "finish", counted)

    async def act() -> None:
        agent = node(tmp_path, guest=False)
        (tmp_path / "state").mkdir()
        path = agent._stores.path(IMAGE)
        write_image(path, {"iteration": AT}, [memoryview(MEMORY)])
        begin_note(path, ImageNote(guest="a", at=AT, generation=3))
        order = Save(guest="a", image=IMAGE, at=AT, generation=3)
        asking = [agent.perform(order) for _ in range(ORDERS)] + [agent.perform(ListGuests()) for _ in range(ORDERS)]
        if noting:
            report = _written(AT, path)
            assert report is not None
            asking.append(agent._images._complete("a", AT, path, report))
        saved = (await asyncio.gather(*asking))[:ORDERS]
        assert all(each == saved[0] for each in saved)
        assert await images_of(agent, written(tmp_path / "right")) == [IMAGE]
        note = complete_note(path)
        assert note is not None
        assert (note.guest, note.generation, note.at) == ("a", 3, AT)

    asyncio.run(act())
    assert finished == [IMAGE]


def test_an_image_that_is_cut_off_or_changed_at_any_byte_is_not_read(tmp_path: Path) -> None:
    right = written(tmp_path)
    path = tmp_path / "a.img"
    for size in range(len(right)):
        path.write_bytes(right[:size])
        with pytest.raises(ImageError):
            ImageReader(path).check()
        path.write_bytes(right[:size] + bytes([right[size] ^ 1]) + right[size + 1 :])
        with pytest.raises(ImageError):
            ImageReader(path).check()
    path.write_bytes(right)
    assert ImageReader(path).check() == digest_of(right)
