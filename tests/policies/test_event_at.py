"""The event of an instant: its contents, and their order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.policies.policy_views import Row, view_of

from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.policies.view import Event, event_at

GREEDY, EASY = parse("GREEDY"), parse("EASY")


def test_a_job_that_is_tried_again_comes_before_a_younger_one() -> None:
    # Jobs 100 and 101 wait and are retried 2, 6, 14, 30 s after their submission; job 102 is new.
    view = view_of([Row(1, submit=0.0), Row(1, submit=8.0), Row(1, submit=14.0)], 1, time_s=14.0)
    event = event_at(GREEDY, view, 12.5, submitted=[102])
    assert event == Event(submitted=(100, 101, 102))
    assert GREEDY.decide(view, event).task_node.tolist()[0] == 0
    assert event_at(EASY, view, 12.5, submitted=[102]) == Event(submitted=(102,))


@given(
    st.lists(st.tuples(st.floats(0.0, 40.0), st.booleans()), min_size=1, max_size=8),
    st.floats(0.0, 10.0),
    st.lists(st.integers(95, 115), unique=True),
    st.booleans(),
)
def test_every_job_is_named_once_in_order_of_submission(rows, waited_s, submitted, periodic) -> None:
    rows = sorted(rows)
    placed = [Row(1, mem=0.01, submit=submit_s, nodes=(0,) if runs else ()) for submit_s, runs in rows]
    view = view_of(placed, 1, time_s=40.0 + waited_s)
    event = event_at(GREEDY, view, 40.0, completed=[7], submitted=submitted, periodic=periodic)
    retried = GREEDY.retried(view, 40.0)
    assert list(event.submitted) == [job for job in view.job_id.tolist() if job in submitted or job in retried]
    assert set(retried) <= set(event.submitted)
    assert (event.completed, event.periodic, event.changed) == ((7,), periodic, False)
