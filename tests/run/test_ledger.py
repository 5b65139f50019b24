"""The order in which an event is appended, applied, and passed to listeners."""

from __future__ import annotations

import pytest
from support.entries import event

from testbed.run import events
from testbed.run.ledger import Ledger
from testbed.run.phases import IllegalEventError, Phase

REPLAY = {"kind": "replay", "jobs": 1, "trace": [{"job": 1, "tasks": 1, "run_time_s": 60.0}], "nodes": ["a"]}


def job(state: str, **more: object) -> events.Event:
    return event({"kind": "job", "job": 1, "state": state, **more})


def ledger_of(journal: list[events.Event]) -> Ledger:
    ledger = Ledger(journal.append)
    ledger.record(event({"kind": "begin", "version": events.VERSION}))
    ledger.record(event(REPLAY))
    return ledger


def test_an_event_is_in_the_journal_and_in_the_state_before_it_is_told() -> None:
    journal: list[events.Event] = []
    ledger, told = ledger_of(journal), list[tuple[events.Event, Phase]]()

    def hear(event: events.Event) -> None:
        assert journal[-1] is event
        told.append((event, ledger.history.jobs[1].phase))

    ledger.listen(hear)
    submitted = job("submitted")
    assert ledger.record(submitted)
    assert told == [(submitted, Phase.WAITING)]


def test_what_a_listener_records_is_state_at_once_and_told_to_all_after_the_event_before_it() -> None:
    journal: list[events.Event] = []
    ledger, told = ledger_of(journal), list[tuple[str, str]]()

    def fails(event: events.Event) -> None:
        assert isinstance(event, events.Job)
        told.append(("first", event.state))
        if event.state == "submitted":
            ledger.record(job("failed", code="node-lost", detail="n"))
            assert ledger.history.jobs[1].phase is Phase.FAILED
            assert told == [("first", "submitted")], "listeners are not nested"

    def second(event: events.Event) -> None:
        assert isinstance(event, events.Job)
        told.append(("second", event.state))

    ledger.listen(fails)
    ledger.listen(second)
    ledger.record(job("submitted"))
    assert told == [("first", "submitted"), ("second", "submitted"), ("first", "failed"), ("second", "failed")]
    assert [each.state for each in journal if isinstance(each, events.Job)] == ["submitted", "failed"]


def test_an_event_that_does_not_count_is_in_the_journal_and_not_told() -> None:
    journal: list[events.Event] = []
    ledger = ledger_of(journal)
    ledger.record(job("submitted"))
    told: list[events.Event] = []
    ledger.listen(told.append)
    foreign = event({"kind": "guest", "job": 1, "task": 0, "node": 0, "event": "failed", "detail": {"reason": "x"}})
    assert not ledger.record(foreign)
    assert journal[-1] is foreign
    assert told == []


def test_an_illegal_event_is_in_the_journal_and_changes_nothing() -> None:
    journal: list[events.Event] = []
    ledger = ledger_of(journal)
    told: list[events.Event] = []
    ledger.listen(told.append)
    with pytest.raises(IllegalEventError, match="job done of job 1"):
        ledger.record(job("done"))
    assert isinstance(journal[-1], events.Job)
    assert (told, ledger.history.jobs[1].phase) == ([], Phase.COMING)


def test_a_listener_that_fails_holds_no_later_event_up() -> None:
    ledger = ledger_of([])
    told: list[events.Event] = []

    def hear(event: events.Event) -> None:
        told.append(event)
        if len(told) == 1:
            raise ValueError("once")

    ledger.listen(hear)
    with pytest.raises(ValueError, match="once"):
        ledger.record(job("submitted"))
    ledger.record(job("running"))
    assert len(told) == 2
