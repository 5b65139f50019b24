"""The comparison of a controller with its journal and its agents can fail."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from support.entries import event
from support.folds import differences
from support.holdings import Holdings
from testbed.run import events
from testbed.run.history import History, fold
from testbed.run.job_history import JobHistory

REPLAY = {"kind": "replay", "jobs": 1, "trace": [{"job": 1, "tasks": 1, "run_time_s": 60.0}], "nodes": ["a", "b"]}
GUEST = "dfrs-x-j1-t0"


def operation(kind: str, verb: str, **more: object) -> events.Known:
    return event({"kind": kind, "action": 1, "verb": verb, "job": 1, "nodes": (0,), **more})


def run_of(*operations: events.Known) -> History:
    entries = [{"kind": "begin", "version": events.VERSION}, REPLAY, {"kind": "job", "job": 1, "state": "submitted"}]
    history = fold(map(event, entries))
    for each in operations:
        history.apply(each)
    return history


STARTS = operation("intent", "start", guests=(GUEST,))
STARTED = operation("outcome", "start", ok=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda job: setattr(job, "running_on", (1,)),
        lambda job: job.been.add((1, 0)),
        lambda job: job.image_holders.add((0, "i")),
        lambda job: setattr(job, "restarts", 1),
    ],
)
def test_a_state_that_something_else_has_changed_is_named(change) -> None:
    mine, journal = run_of(STARTS, STARTED), run_of(STARTS, STARTED)
    assert differences(mine, journal) == []
    change(mine.jobs[1])
    (found,) = differences(mine, journal)
    assert found.startswith("job 1 ")


def test_each_field_of_a_job_is_compared() -> None:
    for field in dataclasses.fields(JobHistory):
        mine, journal = run_of(STARTS, STARTED), run_of(STARTS, STARTED)
        setattr(mine.jobs[1], field.name, "something else")
        assert any(each.startswith(f"job 1 {field.name}: ") for each in differences(mine, journal))


def agents(**guests: tuple[str, ...]) -> Holdings:
    found = Holdings()
    found._agents = {
        node: SimpleNamespace(
            _driver=SimpleNamespace(_guests=dict.fromkeys(held)), _stores=SimpleNamespace(all=lambda: ["i0"])
        )
        for node, held in guests.items()
    }
    return found


@pytest.mark.parametrize(
    ("held", "ended", "what"),
    [
        ({"a": (GUEST,), "b": ()}, False, ""),
        ({"a": (), "b": ()}, True, ""),
        ({"a": ()}, False, f"{GUEST} is held on nodes []: the history has it on [0]"),
        ({"a": (GUEST,), "b": (GUEST,)}, False, f"{GUEST} is held on nodes [1]: the history has it on [0]"),
        ({"b": ()}, False, ""),  # its agent was killed, so the state is unknown
    ],
)
def test_a_guest_that_an_agent_holds_elsewhere_is_found(held: dict, ended: bool, what: str) -> None:
    history, holdings = run_of(STARTS, STARTED), agents(**held)
    if ended:
        holdings._ended.add(GUEST)
    holdings._hear(history, STARTS)
    holdings._hear(history, STARTED)
    assert holdings.compared == 1
    assert [each.partition(" s: ")[2] for each in holdings.different] == ([what] if what else [])


@pytest.mark.parametrize(("image", "found"), [("i0", 0), ("i1", 1)])
def test_an_image_that_an_agent_does_not_have_is_found(image: str, found: int) -> None:
    saves = operation("intent", "save", guests=(GUEST,), images=(image,))
    saved = operation("outcome", "save", ok=True, images=[{"name": image, "bytes": 1, "digest": "d"}])
    history, holdings = run_of(STARTS, STARTED, saves, saved), agents(a=(), b=())
    holdings._hear(history, saves)
    holdings._hear(history, saved)
    assert len(holdings.different) == found
