"""The journal of trials: durable lines, torn ends, bad lines."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import UserError
from testbed.study.calibration.trials import FILE, Outcome, TrialJournal, read_trials

BEGIN = {"lab": "local", "seed": 1}
values = st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=5))
outcomes = st.builds(
    Outcome,
    trial=st.integers(1, 99),
    experiment=st.sampled_from(["save-restore", "start"]),
    block=st.integers(0, 9),
    condition=st.dictionaries(st.text(min_size=1, max_size=5), values, max_size=3),
    observations=st.lists(st.dictionaries(st.text(min_size=1, max_size=5), values, max_size=3), max_size=3).map(tuple),
    elapsed_s=st.floats(0, 1e6),
    foreign_cpu_frac=st.none() | st.floats(0, 1),
    error=st.none() | st.text(max_size=9),
)


def write(path, some):
    with TrialJournal(path) as journal:
        journal.begin(BEGIN)
        for one in some:
            journal.add(one)


@given(some=st.lists(outcomes, max_size=5), torn=st.binary(max_size=20).filter(lambda b: b"\n" not in b))
def test_what_was_written_is_read_and_a_torn_end_is_cut_off(tmp_path_factory, some, torn):
    path = tmp_path_factory.mktemp("journal") / FILE
    write(path, some)
    with path.open("ab") as file:
        file.write(torn)
    assert read_trials(path).outcomes == some
    more = Outcome(trial=1, experiment="bus", block=0, condition={})
    with TrialJournal(path) as journal:
        journal.add(more)
    found = read_trials(path.parent)
    assert found.outcomes == [*some, more]
    assert {key: found.begin[key] for key in BEGIN} == BEGIN


def test_each_line_is_there_when_the_call_returns(tmp_path):
    path = tmp_path / FILE
    with TrialJournal(path) as journal:
        journal.begin(BEGIN)
        journal.add(Outcome(trial=1, experiment="bus", block=0, condition={}, error="no answer"))
        kinds = [json.loads(line)["kind"] for line in path.read_text().splitlines()]
    assert kinds == ["begin", "failed"]


def test_a_trial_that_failed_and_was_done_again_did_not_fail(tmp_path):
    bad = Outcome(trial=1, experiment="bus", block=0, condition={}, error="no answer")
    good = Outcome(trial=1, experiment="bus", block=0, condition={})
    other = Outcome(trial=2, experiment="bus", block=1, condition={}, error="no answer")
    write(tmp_path / FILE, [bad, other, good])
    trials = read_trials(tmp_path)
    assert trials.failed() == [other]
    assert trials.of("bus") == [good]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no line of kind begin"),
        (b'{"kind": "begin"}\n{"kind": "trial", "trial": "x"}\n', "line 2: expected a record of a trial"),
        (b"[]\n", "line 1"),
        (b"\xff\n", "line 1"),
    ],
)
def test_a_bad_journal_is_named_with_its_line(tmp_path, content, message):
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_trials(tmp_path)


def test_a_journal_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match="cannot read"):
        read_trials(tmp_path / "nothing.jsonl")
