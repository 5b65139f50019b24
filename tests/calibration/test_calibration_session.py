"""Calibrations in virtual time: the real session and agents, with drivers that do nothing."""

from __future__ import annotations

import asyncio

import pytest
from support.calibration.starts import Starts

from testbed.errors import RunError, UserError
from testbed.lab.bring_up import dry_lab
from testbed.lab.virtual_time import run_in_virtual_time
from testbed.scenario.schema import load_lab
from testbed.study.calibration.experiments.bus import BusLatency
from testbed.study.calibration.session import MOST_FAILURES, Order, calibrate
from testbed.study.calibration.trials import FILE, read_trials


class Impossible(BusLatency):
    name = "impossible"

    def why_not(self, lab):
        return f"needs more than {len(lab.facts)} nodes"


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "Two-Nodes.toml"
    path.write_text('[[nodes]]\nname = "node-a"\nmemory_mib = 1000\n[[nodes]]\nname = "node-b"\nmemory_mib = 1000\n')
    return load_lab(path)


def run(scenario, place, *experiments, blocks=3, seed=1, quick=False, nodes=(), on_step=lambda _step: None):
    lines, steps = [], []

    def show(step):
        steps.append(step)
        on_step(step)

    order = Order(scenario, experiments, blocks, seed, quick, nodes)
    return run_in_virtual_time(calibrate(order, place, dry_lab, lines.append, show)), lines, steps


def test_every_trial_is_done_with_fresh_guests_and_what_cannot_be_is_said(scenario, tmp_path):
    starts = Starts()
    trials, lines, steps = run(scenario, tmp_path / "c", BusLatency(), Impossible(), starts)
    assert [(step.done, step.total) for step in steps] == [(n, 9) for n in range(10)]
    assert steps[0].left_s == pytest.approx(3 * (3.0 + 3.0) + 3 * 0.5)
    assert len(trials.of("starts")) == 6
    assert len(trials.of("bus")) == 3
    assert len(starts.guests) == len(set(starts.guests)) == 6
    assert lines == ["impossible: not on this lab: needs more than 2 nodes"]
    assert trials.begin["skipped"] == {"impossible": "needs more than 2 nodes"}
    assert set(trials.begin["nodes"]) == {"node-a", "node-b"}
    assert all(len(one.observations) == 50 for one in trials.of("bus"))


def test_a_calibration_that_was_cut_off_goes_on_where_it_was(scenario, tmp_path):
    def stop(step):
        if step.done == 4:
            asyncio.current_task().cancel()

    with pytest.raises(asyncio.CancelledError):
        run(scenario, tmp_path / "c", Starts(), blocks=4, on_step=stop)
    before = read_trials(tmp_path / "c").outcomes
    assert len(before) == 4
    again = Starts()
    trials, lines, _ = run(scenario, tmp_path / "c", again, blocks=4)
    assert again.calls == 4
    assert trials.outcomes[:4] == before
    assert lines == ["4 of 8 trials were done before; going on"]
    assert {one.key for one in trials.outcomes} == {
        ("starts", b, ("memory_mib", m)) for b in range(4) for m in (100, 200)
    }
    nothing = Starts()
    assert run(scenario, tmp_path / "c", nothing, blocks=4)[0].outcomes == trials.outcomes
    assert nothing.calls == 0
    more = Starts()
    outcomes = run(scenario, tmp_path / "c", more, blocks=5)[0].outcomes
    assert more.calls == 2
    outcomes = run(scenario, tmp_path / "c", BusLatency(), blocks=5)[0].outcomes
    assert [outcome.trial for outcome in outcomes] == list(range(1, 16))


def test_a_trial_that_fails_is_journalled_and_done_again_next_time(scenario, tmp_path):
    trials, _, _ = run(scenario, tmp_path / "c", Starts(lambda call: call == 2))
    (failed,) = trials.failed()
    assert failed.error == "broken"
    trials, _, _ = run(scenario, tmp_path / "c", again := Starts())
    assert again.calls == 1
    assert not trials.failed()
    assert len(trials.of("starts")) == 6


def test_a_broken_lab_ends_the_calibration(scenario, tmp_path):
    starts = Starts(lambda call: call > 2)
    with pytest.raises(RunError, match=f"{MOST_FAILURES} trials failed one after the other, the last: broken"):
        run(scenario, tmp_path / "c", starts)
    assert starts.calls == 2 + MOST_FAILURES


@pytest.mark.parametrize(("change", "message"), [({"seed": 2}, "seed = 1"), ({"quick": True}, "quick = False")])
def test_trials_of_another_order_are_no_repeats(scenario, tmp_path, change, message):
    run(scenario, tmp_path / "c", BusLatency())
    was = (tmp_path / "c" / FILE).read_bytes()
    with pytest.raises(UserError, match=message):
        run(scenario, tmp_path / "c", BusLatency(), **change)
    assert (tmp_path / "c" / FILE).read_bytes() == was


def test_trials_of_another_machine_are_no_repeats(scenario, tmp_path):
    run(scenario, tmp_path / "c", BusLatency())
    path = tmp_path / "c" / FILE
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0].replace('"memory_mib":1000', '"memory_mib":2000') + "".join(lines[1:]))
    with pytest.raises(UserError, match="node node-a had memory_mib = 2000, now 1000"):
        run(scenario, tmp_path / "c", BusLatency())


def test_only_the_nodes_that_are_wanted_take_part(scenario, tmp_path):
    trials, _, _ = run(scenario, tmp_path / "c", BusLatency(), nodes=("node-b",))
    assert set(trials.begin["nodes"]) == {"node-b"}
    with pytest.raises(UserError, match="node 'node-c': expected one of node-a, node-b; nearest: node-"):
        run(scenario, tmp_path / "d", BusLatency(), nodes=("node-c",))
