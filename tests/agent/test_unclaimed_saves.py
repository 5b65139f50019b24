"""Guests that leave after saves whose caller is gone: at each moment, either a guest or its image is listed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from node_agent.agent import Agent, AgentConfig
from node_agent.drivers.null import NullDriver
from node_agent.drivers.protocol import DriverError, SaveReport
from node_agent.image_notes import ImageNote, begin_note
from testbed.bus.memory import MemoryHub
from testbed.bus.messages import GuestSpec, Hold, ListGuests, ProgramSpec, Save, Start
from testbed.lab.virtual_time import run_in_virtual_time

PROGRAM = ProgramSpec(name="eatcpu", work_units=10**9, units_per_iteration=100, seed=1)
SPEC = GuestSpec(guest="a", run="t", job=1, task=0, program=PROGRAM, cpu_cores=1.0, memory_mib=60)
T = TypeVar("T")


class Outliving(NullDriver):
    """A driver whose guest is being saved by an earlier agent's order."""

    def __init__(self) -> None:
        super().__init__()
        self.keep_s = 0.0
        self.on_saved: Callable[[str, int | None, Path, SaveReport], None] | None = None
        self.settled_guests: list[str] = []
        self.on_hold: Callable[[], None] | None = None

    def taken_over(self) -> list[GuestSpec]:
        return []

    def settled(self, guest: str) -> None:
        self.settled_guests.append(guest)

    async def hold(self, guest: str) -> int | None:
        if self.on_hold is not None:
            self.on_hold()
        return await super().hold(guest)


class Bench:
    """An agent with one guest, whose save ends when `end_save` is called."""

    def __init__(self, folder: Path) -> None:
        self.driver = Outliving()
        config = AgentConfig("t", "n0", 1.0, 1000, folder / "state", folder / "images", str(folder), serve_images=False)
        self.agent = Agent(config, self.driver, lambda presence: MemoryHub().client("agent", presence))
        self.agent._survivors.prepare(1.0, self.agent._saved)
        self.image = folder / "images" / "a.img"

    async def begin(self) -> None:
        await self.agent.perform(Start(spec=SPEC, cap_cores=1.0))
        begin_note(self.image, ImageNote(guest="a", at=7))

    def end_save(self, *, written: bool = True) -> None:
        if written:
            self.image.write_bytes(b"image")
        del self.driver._guests["a"]
        assert self.driver.on_saved is not None
        self.driver.on_saved("a", 7, self.image, SaveReport(5, "digest", 0.0, 0.0, 0.0))

    async def listed(self) -> tuple[list[str], list[str]]:
        found = msgspec.convert(await self.agent.perform(ListGuests()), dict[str, object])
        return [sample["guest"] for sample in found["guests"]], found["images"]


def play(folder: Path, work: Callable[[Bench], Coroutine[None, None, None]]) -> None:
    async def main() -> None:
        bench = Bench(folder)
        await bench.begin()
        await work(bench)

    run_in_virtual_time(main())


def test_a_list_waits_for_the_note_of_a_guest_that_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(bench: Bench) -> None:
        do = bench.agent._stores.do

        async def slowly(what: Callable[[], T]) -> T:
            await asyncio.sleep(1.0)
            return await do(what)

        monkeypatch.setattr(bench.agent._stores, "do", slowly)
        assert await bench.listed() == (["a"], [])
        bench.end_save()
        assert await bench.listed() == ([], ["a.img"])
        assert bench.driver.settled_guests == ["a"]
        assert "a" not in bench.agent.held()

    play(tmp_path, work)


def test_a_guest_that_leaves_while_a_list_is_made_is_in_it_with_its_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(bench: Bench) -> None:
        images = bench.agent._stores.all
        leaving = [bench.end_save]

        def read() -> list[str]:
            found = images()
            if leaving:
                leaving.pop()()
            return found

        monkeypatch.setattr(bench.agent._stores, "all", read)
        assert await bench.listed() == ([], ["a.img"])

    play(tmp_path, work)


def test_a_guest_that_leaves_while_it_is_to_be_held_is_told_as_saved(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        bench.driver.on_hold = bench.end_save
        held = await bench.agent.perform(Hold(guest="a", image="a.img"))
        assert (held["saved"], held["at"]) == (True, 7)
        bench.driver.on_hold = None
        held = await bench.agent.perform(Hold(guest="a", image="a.img"))
        assert (held["saved"], held["at"]) == (True, 7)
        report = await bench.agent.perform(Save(guest="a", image="a.img", at=7))
        assert (report["bytes"], report["digest"]) == (5, "digest")

    play(tmp_path, work)


def test_a_guest_that_leaves_is_not_taken_for_one_that_was_saved_to_another_image(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        bench.driver.on_hold = bench.end_save
        with pytest.raises(DriverError, match="guest a"):
            await bench.agent.perform(Hold(guest="a", image="b.img"))
        assert await bench.listed() == ([], ["a.img"])

    play(tmp_path, work)


def test_a_guest_whose_image_cannot_be_noted_has_failed(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        bench.end_save(written=False)
        await bench.agent._images.settle()
        (failed,) = [bench.agent._events._driver_events.get_nowait()]
        assert (failed.guest, failed.event) == ("a", "failed")
        assert "a.img" in str(failed.detail["reason"])
        assert failed.detail["code"] == "save-failed"
        assert bench.driver.settled_guests == []

    play(tmp_path, work)
