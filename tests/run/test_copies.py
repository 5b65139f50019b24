"""Second copies of images in the state of a run: permitted places, actual places, and the source of a restore."""

from __future__ import annotations

from typing import Any

import pytest
from support.entries import event

from testbed.run import events
from testbed.run.history import History, fold
from testbed.run.job_history import JobHistory
from testbed.run.phases import IllegalEventError

TRACE = [{"job": 1, "tasks": 2, "run_time_s": 60.0}]
IMAGES = [{"name": f"i{task}", "bytes": 5, "digest": "d"} for task in (0, 1)]
NODES = {"nodes": (0, 1)}
SAVED: list[dict[str, Any]] = [
    {"kind": "begin", "version": events.VERSION},
    {"kind": "replay", "jobs": 1, "trace": TRACE, "nodes": ["a", "b", "c"]},
    {"kind": "job", "job": 1, "state": "submitted"},
    {"kind": "intent", "action": 1, "verb": "start", "job": 1, **NODES},
    {"kind": "outcome", "action": 1, "verb": "start", "job": 1, "ok": True, **NODES},
    {"kind": "intent", "action": 2, "verb": "save", "job": 1, "images": ("i0", "i1"), **NODES},
    {"kind": "outcome", "action": 2, "verb": "save", "job": 1, "ok": True, "images": IMAGES, **NODES},
]
HOME = {(0, "i0"), (1, "i1")}


def history(*entries: dict[str, Any]) -> History:
    return fold(event({"t_s": float(number), **entry}) for number, entry in enumerate([*SAVED, *entries]))


def job(*entries: dict[str, Any]) -> JobHistory:
    return history(*entries).jobs[1]


def replicated(state: str, node: int | None = 2, image: str = "i0", task: int = 0) -> dict[str, Any]:
    return {"kind": "replicated", "job": 1, "task": task, "image": image, "state": state, "node": node}


def test_a_copy_counts_once_it_is_complete_and_may_be_there_before() -> None:
    begun = job(replicated("begun"))
    assert (begun.image_holders, begun.whole_copies) == (HOME | {(2, "i0")}, HOME)
    assert job(replicated("begun"), replicated("failed")).image_holders == HOME | {(2, "i0")}
    assert job(replicated("failed", None)).image_holders == HOME
    complete = job(replicated("begun"), replicated("complete"))
    assert complete.whole_copies == complete.image_holders == HOME | {(2, "i0")}
    assert complete.saved_on == (0, 1)


def test_a_copy_that_was_dropped_meanwhile_does_not_count() -> None:
    dropped = {"kind": "images-dropped", "job": 1}
    late = job(replicated("begun"), dropped, replicated("complete"))
    assert late.whole_copies == late.image_holders == set()


def test_only_the_named_images_are_dropped() -> None:
    kept = job(replicated("begun"), replicated("complete"), {"kind": "images-dropped", "job": 1, "images": ("i0",)})
    assert kept.whole_copies == kept.image_holders == {(1, "i1")}


def test_a_node_that_returns_without_a_copy_does_not_hold_it() -> None:
    back = {"kind": "returned", "node": "c", "reachable": True, "missing": ["i0"]}
    assert job(replicated("begun"), replicated("complete"), back).whole_copies == HOME
    assert job(replicated("begun"), replicated("failed"), back).image_holders == HOME


def test_a_node_that_returns_while_a_copy_is_made_there_may_have_it() -> None:
    back = {"kind": "returned", "node": "c", "reachable": True, "missing": ["i0"]}
    assert job(replicated("begun"), back, replicated("complete")).whole_copies == HOME | {(2, "i0")}


def test_a_saved_job_goes_on_from_a_copy() -> None:
    assert job(replicated("begun"), replicated("complete"), replicated("used")).saved_on == (2, 1)


def test_a_repaired_image_is_complete_again() -> None:
    back = {"kind": "returned", "node": "a", "reachable": True, "missing": ["i0"]}
    assert job(back).whole_copies == {(1, "i1")}
    assert job(back, replicated("repaired", 0)).whole_copies == HOME
    assert job(back, replicated("repaired", 0, "older")).whole_copies == {(1, "i1")}


@pytest.mark.parametrize(
    "entries",
    [
        [replicated("begun"), replicated("used")],
        [replicated("begun"), replicated("complete"), replicated("used", 1)],
        [replicated("begun"), replicated("complete"), replicated("used", task=1)],
        [replicated("begun"), replicated("complete"), replicated("used", task=7)],
        [
            replicated("begun"), replicated("complete"),
            {"kind": "intent", "action": 3, "verb": "restore", "job": 1, **NODES}, replicated("used"),
        ],
    ],
)  # fmt: skip
def test_a_job_goes_on_only_from_a_complete_copy_of_its_image_and_while_it_is_saved(entries: list) -> None:
    with pytest.raises(IllegalEventError, match="expected a saved job"):
        history(*entries)
