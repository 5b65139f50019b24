"""Silence is not death: which nodes are suspect or lost, for any order of a controller's observations."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from testbed.lab.liveness import (
    Announced,
    BusBack,
    BusLost,
    Change,
    Heard,
    LabLife,
    Left,
    Noticed,
    Passed,
    Rule,
    Standing,
    Vanished,
    at_first,
    notice,
)

RULE = Rule(silence_s=6.0, lost_after_s=60.0, lost_together_after_s=150.0, stall_s=3.0)
STEP_S = 1.5  # between two readings of the clock
ONLINE, SUSPECT, LOST = Standing.ONLINE, Standing.SUSPECT, Standing.LOST


class Watch:
    """A lab of nodes, all announced, and the verdicts about them so far."""

    def __init__(self, nodes: int) -> None:
        self.lab: LabLife = at_first(nodes, 0.0)
        self.changes: list[Change] = []
        for node in range(nodes):
            self.notice(Announced(node, f"boot {node}"))
        self.changes.clear()

    def notice(self, *all_that: Noticed) -> tuple[Change, ...]:
        new: tuple[Change, ...] = ()
        for what in all_that:
            self.lab, changes = notice(self.lab, what, RULE)
            new += changes
        self.changes += new
        return new

    def pass_s(self, seconds: float, *speaking: int) -> None:
        """Let time pass in which records of these nodes, and of no others, arrive."""
        for _ in range(round(seconds / STEP_S)):
            self.notice(Passed(self.lab.at_s + STEP_S), *(Heard(node) for node in speaking))

    @property
    def standing(self) -> list[Standing]:
        return [life.standing for life in self.lab.nodes]


def test_a_node_that_alone_is_silent_is_suspect_and_then_lost():
    watch = Watch(3)
    watch.pass_s(6.0, 0, 2)
    assert watch.standing == [ONLINE] * 3
    watch.pass_s(STEP_S, 0, 2)
    assert watch.standing == [ONLINE, SUSPECT, ONLINE]
    watch.pass_s(60.0 - 6.0 - STEP_S, 0, 2)
    assert watch.standing == [ONLINE, SUSPECT, ONLINE]
    watch.pass_s(STEP_S, 0, 2)
    assert watch.standing == [ONLINE, LOST, ONLINE]
    assert [(change.node, change.after, change.reason) for change in watch.changes] == [
        (1, SUSPECT, "silent for 7.5 s"),
        (1, LOST, "silent for 61.5 s"),
    ]
    watch.notice(Heard(1))
    assert watch.standing == [ONLINE] * 3


def test_nobody_is_blamed_while_the_controller_is_off_the_bus():
    watch = Watch(2)
    watch.pass_s(4.5, 0)
    watch.notice(BusLost())
    watch.pass_s(3600.0)
    watch.notice(BusBack())
    watch.pass_s(6.0)  # until agents have connected again, too
    assert watch.changes == []


def test_nobody_is_blamed_for_a_controller_that_stood_still():
    watch = Watch(2)
    for _ in range(100):
        watch.notice(Passed(watch.lab.at_s + 10.0))
    assert watch.changes == []
    watch.pass_s(7.5, 0)
    assert watch.standing == [ONLINE, SUSPECT]


def test_nodes_that_are_silent_together_are_suspect_for_as_long_as_their_leases_may_last():
    watch = Watch(3)
    watch.pass_s(7.5)
    assert watch.standing == [SUSPECT] * 3
    assert watch.changes[0].reason == "silent for 7.5 s, as all nodes"
    watch.pass_s(150.0 - 7.5)
    assert watch.standing == [SUSPECT] * 3
    watch.pass_s(STEP_S)
    assert watch.standing == [LOST] * 3
    watch.notice(Heard(2))
    assert watch.standing == [LOST, LOST, ONLINE]


def test_who_stays_silent_when_the_others_speak_again_is_lost():
    watch = Watch(3)
    watch.pass_s(90.0)
    watch.notice(Heard(0), Heard(1))
    assert watch.standing == [ONLINE, ONLINE, SUSPECT]
    watch.pass_s(STEP_S, 0, 1)
    assert watch.standing == [ONLINE, ONLINE, LOST]


def test_an_agent_that_vanished_is_suspect_at_once_and_back_with_its_announcement_only():
    watch = Watch(2)
    (change,) = watch.notice(Vanished(0))
    assert (change.before, change.after, change.restarted) == (ONLINE, SUSPECT, False)
    watch.notice(Heard(0))  # a record that was in transit
    assert watch.standing == [SUSPECT, ONLINE]
    (change,) = watch.notice(Announced(0, "boot 0"))
    assert (change.before, change.after, change.restarted) == (SUSPECT, ONLINE, False)
    watch.notice(Vanished(0))
    watch.pass_s(61.5, 1)
    assert watch.standing == [LOST, ONLINE]
    (change,) = watch.notice(Announced(0, "another boot"))
    assert (change.before, change.after, change.restarted) == (LOST, ONLINE, True)


def test_an_agent_that_is_another_one_is_told_although_nobody_saw_the_first_one_go():
    watch = Watch(1)
    assert watch.notice(Announced(0, "boot 0")) == ()
    (change,) = watch.notice(Announced(0, "another boot"))
    assert (change.before, change.after, change.restarted) == (ONLINE, ONLINE, True)


def test_an_agent_that_ends_in_order_is_lost_at_once():
    watch = Watch(2)
    (change,) = watch.notice(Left(1))
    assert (change.after, change.reason) == (LOST, "its agent ended")
    watch.notice(Heard(1))
    assert watch.standing == [ONLINE, LOST]


def test_a_node_that_was_never_there_is_not_judged():
    lab = at_first(2, 0.0)
    lab, changes = notice(lab, Announced(0, "b"), RULE)
    assert [change.before for change in changes] == [Standing.UNKNOWN]
    for what in (Heard(1), Vanished(1), Left(1)):
        lab, changes = notice(lab, what, RULE)
        assert (changes, lab.nodes[1].standing) == ((), Standing.UNKNOWN)
    watch = Watch(2)
    watch.lab = lab
    watch.pass_s(600.0, 0)
    assert watch.standing == [ONLINE, Standing.UNKNOWN]


NODES = 3
node = st.integers(0, NODES - 1)
anything = st.lists(
    st.one_of(
        st.floats(0.1, 30.0),  # seconds until the next reading of the clock
        st.builds(BusLost),
        st.builds(BusBack),
        st.builds(Heard, node),
        st.builds(Announced, node, st.sampled_from(["a", "b"])),
        st.builds(Vanished, node),
        st.builds(Left, node),
    ),
    max_size=120,
)


@given(anything)
def test_a_node_is_lost_only_after_a_silence_that_could_have_been_heard(story):
    lab = at_first(NODES, 0.0)
    audible_s = [0.0] * NODES  # upper bound of the silence that can be attributed to each node
    on_bus = True
    for what in story:
        event = Passed(lab.at_s + what) if isinstance(what, float) else what
        before = lab
        lab, changes = notice(lab, event, RULE)
        match event:
            case Passed(at_s):
                if on_bus and at_s - before.at_s <= RULE.stall_s:
                    audible_s = [silent_s + at_s - before.at_s for silent_s in audible_s]
            case BusLost():
                on_bus = False
            case BusBack():
                on_bus = True
            case Heard(who) | Announced(who, _):
                audible_s[who] = 0.0
        for who, (old, new) in enumerate(zip(before.nodes, lab.nodes, strict=True)):
            mine = [change for change in changes if change.node == who]
            assert bool(mine) == (old.standing is not new.standing or any(change.restarted for change in mine))
            assert [(change.before, change.after) for change in mine] in ([], [(old.standing, new.standing)])
            if new.standing is LOST and old.standing is not LOST and not isinstance(event, Left):
                assert old.standing in (ONLINE, SUSPECT)
                assert audible_s[who] > RULE.lost_after_s - 1e-6
            if new.standing is SUSPECT and old.standing is ONLINE and not isinstance(event, Vanished):
                assert audible_s[who] > RULE.silence_s - 1e-6
            if old.standing is LOST and new.standing is not LOST:
                assert isinstance(event, Heard | Announced)


@given(anything)
def test_off_the_bus_only_what_was_said_changes_anything(story):
    lab, _ = notice(at_first(NODES, 0.0), Announced(0, "a"), RULE)
    lab, _ = notice(lab, BusLost(), RULE)
    for what in story:
        if isinstance(what, float):
            lab, changes = notice(lab, Passed(lab.at_s + what), RULE)
            assert changes == ()
