"""The controller's account of the space for images: orders never exceed a node's space, even with late reports."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.bus.no_room import NoRoom
from testbed.control.image_room import RoomLedger, Shortage, image_needs
from testbed.control.planner import PlannedAction, Verb


def ledger_of(*free_mib: int | None) -> RoomLedger:
    ledger = RoomLedger(len(free_mib))
    for node, free in enumerate(free_mib):
        ledger.heard(node, free, 0)
    return ledger


def test_a_node_that_reports_nothing_has_no_limit() -> None:
    ledger = ledger_of(None)
    assert ledger.free_mib(0) is None
    assert ledger.short({0: 1 << 40}) == ()


def test_each_node_without_room_is_named_with_what_it_has() -> None:
    ledger = ledger_of(100, 1000, None, 399)
    assert ledger.short({0: 400, 1: 400, 2: 400, 3: 400}) == (Shortage(0, 400, 100), Shortage(3, 400, 399))


def test_an_order_counts_until_a_sample_that_was_taken_after_it_was_over() -> None:
    ledger = ledger_of(1000)
    ledger.order(1, {0: 600})
    assert ledger.short({0: 600}) == (Shortage(0, 600, 400),)
    ledger.heard(0, 1000, 10)
    assert ledger.free_mib(0) == 400
    ledger.over(1, 20)
    assert not ledger.heard(0, 400, 20), "the sample may be from just before"
    assert ledger.free_mib(0) == 0
    assert ledger.heard(0, 400, 21)
    assert ledger.free_mib(0) == 400


@pytest.mark.parametrize(("free_mib", "reopens_mib"), [(100, 400), (900, 1300)])
def test_a_node_that_refused_is_asked_again_when_it_reports_enough_more(free_mib: int, reopens_mib: int) -> None:
    ledger = ledger_of(1000)
    ledger.refused(0, NoRoom(needed_mib=400, free_mib=free_mib))
    assert ledger.short({0: 400}) == (Shortage(0, 400, free_mib),)
    assert ledger.short({0: 399}) == ()
    ledger.heard(0, reopens_mib - 1, 1)
    assert ledger.short({0: 400})
    ledger.heard(0, None, 2)
    assert ledger.short({0: 400})
    assert ledger.heard(0, reopens_mib, 3)
    assert ledger.short({0: 400}) == ()


def test_more_room_is_told_of_and_less_is_not() -> None:
    ledger = ledger_of(100)
    assert [ledger.heard(0, free, time) for time, free in enumerate((100, 99, 101, None, 5), 1)] == [
        False, False, True, True, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("action", "then_to", "needs"),
    [
        (PlannedAction(Verb.SAVE, 1, (0, 0, 1)), None, {0: 200, 1: 100}),
        (PlannedAction(Verb.SAVE, 1, (0, 1)), (0, 2), {0: 100, 1: 100, 2: 100}),
        (PlannedAction(Verb.SAVE, 1, (0, 1)), (1, 0), {0: 200, 1: 200}),
        (PlannedAction(Verb.TRANSFER, 1, (0, 2)), None, {2: 100}),
        (PlannedAction(Verb.TRANSFER, 1, (1, 0)), None, {0: 100, 1: 100}),
        (PlannedAction(Verb.RESTORE, 1, (0, 2)), None, {}),
        (PlannedAction(Verb.CAP, 1, (0, 1)), None, {}),
        (PlannedAction(Verb.MIGRATE, 1, (2, 3)), None, {}),
    ],
)
def test_what_an_operation_needs(action: PlannedAction, then_to: tuple[int, ...] | None, needs: dict[int, int]) -> None:
    assert image_needs(action, 100, [{0}, {1}], then_to) == needs


@dataclass
class Disk:
    """A node's disk, with the effects of the ledger's orders, and with late reports."""

    mib: int
    ledger: RoomLedger = field(default_factory=lambda: RoomLedger(1))
    now: int = 0
    ordered: dict[int, int] = field(default_factory=dict)  # orders that are not complete yet
    images: dict[int, int] = field(default_factory=dict)
    told: set[int] = field(default_factory=set)
    reports: list[tuple[int, int]] = field(default_factory=list)

    @property
    def free_mib(self) -> int:
        return self.mib - sum(self.images.values())

    def do(self, step: str, number: int) -> None:
        self.now += 1
        match step:
            case "order" if not self.ledger.short({0: number + 1}):
                self.ordered[self.now] = number + 1
                self.ledger.order(self.now, {0: number + 1})
            case "complete" if self.ordered:
                operation = sorted(self.ordered)[number % len(self.ordered)]
                self.images[operation] = self.ordered.pop(operation)
            case "fail" if self.ordered:
                operation = sorted(self.ordered)[number % len(self.ordered)]
                del self.ordered[operation]
                self.ledger.over(operation, self.now)
            case "hear" if untold := sorted(set(self.images) - self.told):
                self.told.add(untold[number % len(untold)])
                self.ledger.over(untold[number % len(untold)], self.now)
            case "drop" if heard := sorted(set(self.images) & self.told):
                del self.images[heard[number % len(heard)]]
            case "report":
                self.reports.append((self.free_mib, self.now))
            case "arrive" if self.reports:
                self.ledger.heard(0, *self.reports.pop(0))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["order", "order", "complete", "fail", "hear", "drop", "report", "arrive", "arrive"]),
        st.integers(0, 40),
    ),
    max_size=60,
)


@given(mib=st.integers(0, 100), steps=STEPS)
def test_never_more_is_ordered_than_is_free(mib: int, steps: list[tuple[str, int]]) -> None:
    disk = Disk(mib)
    disk.ledger.heard(0, mib, 0)
    for step, number in steps:
        disk.do(step, number)
        assert sum(disk.ordered.values()) <= disk.free_mib
        assert (disk.ledger.free_mib(0) or 0) >= 0
