"""A save or a transfer that was interrupted at any step is continued by a repetition. In virtual time."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from support.agent.agents_at_hand import AgentsAtHand, ControllerDiedError, Crash, job, started

from node_agent.image_notes import complete_note
from testbed.bus.messages import (
    AnyAction,
    DropImage,
    FetchImage,
    Hold,
    ImageRef,
    NodeFacts,
    OfferImage,
    Release,
    Save,
    Stop,
)
from testbed.errors import TestbedError
from testbed.lab.job_guests import JobGuests
from testbed.lab.operations import Operations
from testbed.lab.saving import SaveError
from testbed.lab.virtual_time import run_in_virtual_time
from testbed.scenario.schema import DeadlinesTable

NAMES = ("g0-s1.img", "g1-s1.img")
PLACES = (0, 1)
COMMANDS = 4  # of a save of two tasks: two holds and two saves


async def saved(nodes: AgentsAtHand, live: JobGuests) -> tuple[ImageRef, ...]:
    """Save a job, with another controller after each death of one."""
    while True:
        try:
            return await Operations(nodes, DeadlinesTable()).save(live, NAMES, lambda _name, _times: None)
        except ControllerDiedError:
            continue


def check(nodes: AgentsAtHand, live: JobGuests, images: tuple[ImageRef, ...], *, together: bool) -> None:
    """Assert that every guest is in its image, which is complete, was reported, and is of the common point."""
    ats = []
    for node, image in zip(PLACES, images, strict=True):
        path = nodes.folder / str(node) / "images" / image.image
        note = complete_note(path)
        assert note is not None
        assert (note.bytes, note.digest) == (image.bytes, image.digest)
        content = json.loads(path.read_text())
        assert content["units"] == note.at * 100
        ats.append(note.at)
        assert not nodes.driver(node)._guests
        assert not nodes.agents[node]._residents.names
    assert (len(set(ats)) == 1) is together


@pytest.mark.parametrize(("ranks", "running"), [(True, False), (False, False), (False, True)])
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("who", ["agent", "controller"])
@pytest.mark.parametrize("number", range(COMMANDS))
def test_a_save_that_broke_off_at_any_step_is_carried_on(
    tmp_path: Path, number: int, who: str, before: bool, running: bool, ranks: bool
) -> None:
    async def main() -> None:
        nodes = AgentsAtHand(tmp_path, crash=Crash(number, who, before, running))
        live = job(2, ranks=ranks)
        await started(nodes, live, PLACES)
        try:
            images = await saved(nodes, live)
        except TestbedError:  # an agent died with a hold: the executor tries again
            images = await saved(nodes, live)
        check(nodes, live, images, together=ranks)
        assert await saved(nodes, live) == images
        assert not [action for _, action in nodes.log if isinstance(action, Stop | DropImage)]

    run_in_virtual_time(main())


def test_a_member_that_went_on_beyond_the_point_of_a_saved_one_is_a_clear_failure(tmp_path: Path) -> None:
    async def main() -> None:
        nodes = AgentsAtHand(tmp_path)
        live = job(2, ranks=True)
        await started(nodes, live, PLACES)
        for order in (Hold(guest="g0", image=NAMES[0]), Save(guest="g0", image=NAMES[0], at=15)):
            await nodes.agents[0].perform(order)
        with pytest.raises(SaveError, match=r"task 0 was saved at iteration 15 on node n0, .* iteration 20"):
            await saved(nodes, live)
        assert not [action for _, action in nodes.log if isinstance(action, Release)]

    run_in_virtual_time(main())


def test_a_job_that_is_saved_in_part_is_not_released(tmp_path: Path) -> None:
    async def main() -> None:
        nodes = AgentsAtHand(tmp_path)
        live = job(2, ranks=True)
        await started(nodes, live, PLACES)
        for order in (Hold(guest="g0", image=NAMES[0]), Save(guest="g0", image=NAMES[0], at=30)):
            await nodes.agents[0].perform(order)
        nodes.crash = Crash(1, "agent", before=True)
        with pytest.raises(TestbedError, match="n1: hold: interrupted: the agent was restarted"):
            await saved(nodes, live)
        assert not [action for _, action in nodes.log if isinstance(action, Release)]
        check(nodes, live, await saved(nodes, live), together=True)

    run_in_virtual_time(main())


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("who", ["agent", "controller"])
@pytest.mark.parametrize("number", range(COMMANDS))  # two offers and two fetches
def test_a_transfer_that_broke_off_at_any_step_is_carried_on(
    tmp_path: Path, number: int, who: str, before: bool
) -> None:
    async def main() -> None:
        nodes = AgentsAtHand(tmp_path)
        live = job(2, ranks=True)
        await started(nodes, live, PLACES)
        images = await saved(nodes, live)
        live.state.running_on, live.state.saved_on = None, PLACES
        nodes.crash = Crash(len(nodes.log) + number, who, before)
        sent = None
        while sent is None:
            try:
                sent = await Operations(nodes, DeadlinesTable()).transfer(live, images, (1, 0))
            except (ControllerDiedError, TestbedError):
                assert nodes.crash is not None
        assert sent == 2 * (60 << 20)
        for node, image in zip((1, 0), images, strict=True):
            note = complete_note(tmp_path / str(node) / "images" / image.image)
            assert note is not None
            assert note.digest == image.digest
            assert complete_note(tmp_path / str(1 - node) / "images" / image.image) is not None, "the source stays"

    run_in_virtual_time(main())


class Restarting(AgentsAtHand):
    """Agents that restart at each order for an image, before they execute it, so that their ports change."""

    port = 1

    def facts(self, node: int) -> NodeFacts:
        return msgspec.structs.replace(super().facts(node), image_port=self.port)

    async def call(self, node: int, action: AnyAction, deadline_s: float) -> dict[str, object]:
        if isinstance(action, OfferImage):
            self.port += 1
        if isinstance(action, FetchImage):
            assert action.port == self.port
        return await super().call(node, action, deadline_s)


def test_an_image_is_fetched_from_the_agent_that_has_offered_it(tmp_path: Path) -> None:
    """The order to offer the image may wait until the agent of its node has restarted."""

    async def main() -> None:
        nodes = Restarting(tmp_path)
        live = job(1, ranks=False)
        await started(nodes, live, (0,))
        (image,) = await Operations(nodes, DeadlinesTable()).save(live, NAMES[:1], lambda _name, _times: None)
        await Operations(nodes, DeadlinesTable()).send_image(0, 1, image, live.memory_mib)
        assert nodes.port == 2
        assert complete_note(tmp_path / "1" / "images" / image.image) is not None

    run_in_virtual_time(main())
