"""Costs of starts, nodes that stay occupied during saves, concurrency by node, measured progress: by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.simulation.scripted import Scripted, by_views, on_arrays

from testbed.errors import RunError, UserError
from testbed.scheduling.compiler import can_compile
from testbed.scheduling.policies.catalogue import available, parse
from testbed.scheduling.policies.dfrs import DfrsPolicy
from testbed.scheduling.simulation import moving
from testbed.scheduling.simulation.batch import schedule_batch
from testbed.scheduling.simulation.compiling import NEVER
from testbed.scheduling.simulation.loop import run_loop
from testbed.scheduling.simulation.measures import measure
from testbed.scheduling.simulation.overheads import BesideRunning, Overheads, ParallelExtra, constant
from testbed.scheduling.simulation.overheads_parser import parse_overheads
from testbed.scheduling.simulation.progress import Progress
from testbed.scheduling.simulation.simulate import simulate
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.synthetic import synthetic_trace

LOOPS = pytest.mark.parametrize("loop", [by_views, on_arrays])
FIELDS = ["start_s", "end_s", "virtual_time_s", "preemptions", "migrations", "penalty_s", "tasks_moved"]
FILE = """
[calibration]
version = 1
[[quantity]]
name = "save_fixed_s"
value = 1.0

[overheads]
concurrent_per = "node"
concurrent_tasks = [1, 2]
memory_gb = [1.0, 2.0]
start_s = [[1, 1], [3, 3]]
save_s = [[2, 4], [4, 8]]
resume_s = [[3, 5], [6, 10]]
migration_s = [[6, 10], [12, 20]]
migration = "save-restore"
transfer_s = [[1, 2], [2, 4]]
[overheads.progress]
yield_frac = [0.5, 1.0]
serial = [0.4, 1.0]
parallel = [0.6, 1.0]
"""


def job(job_id, submit_s, run_s, tasks=1, cpu=0.5, mem=0.125):
    return Job(job_id, float(submit_s), tasks, cpu, mem, float(run_s))


def model(**what):
    """Return a model with resumes of 3 s and migrations of 6 s, and with further overheads of a test."""
    arrays = {name: np.array(value) if isinstance(value, list) else value for name, value in what.items()}
    return replace(constant(3), migration_s=np.array([[6.0]]), **arrays)


def by_tasks(one, two, **what):
    """Return a model of `one` second for one task that moves and `two` for two, for any operation."""
    seconds = np.array([[float(one)], [float(two)]])
    levels = {"concurrent_tasks": np.array([1.0, 2.0]), "memory_gb": np.array([0.0])}
    return Overheads("by tasks", **levels, resume_s=seconds, migration_s=seconds, **what)


@LOOPS
def test_a_first_start_that_costs_delays_progress_and_counts_as_penalty(loop):
    run = loop([job(0, 0, 100)], 1, Scripted({0: {0: (0, 0.5)}}), model(start_s=[[7.0]]).table(8.0))
    assert (run.start_s[0], run.end_s[0], run.penalty_s[0]) == (0.0, 207.0, 7.0)


@LOOPS
def test_who_comes_to_a_node_waits_until_who_was_paused_there_is_saved(loop):
    script = {
        0: {0: (0, 1.0)},
        10: {1: (0, 1.0)},
        12: {1: (0, 0.5), 2: (0, 0.5), 3: (1, 1.0)},
        60: {0: (1, 1.0)},
    }
    jobs = [job(0, 0, 30, mem=0.6), job(1, 10, 20, mem=0.5), job(2, 12, 10, mem=0.5), job(3, 12, 4)]
    run = loop(jobs, 2, Scripted(script, 2.0), model(save_s=[[8.0]]).table(8.0))
    assert run.end_s[3] == 16.0  # the other node is not occupied
    assert run.end_s[1] == 18.0 + 40.0  # job 0 is saved from 10 to 18
    assert run.end_s[2] == 18.0 + 20.0  # the node is still occupied at a later decision
    assert run.end_s[0] == 60.0 + 3.0 + 20.0
    assert run.penalty_s.tolist() == [3.0, 8.0, 6.0, 0.0]
    small = [replace(each, mem_req_frac=0.3) for each in jobs]
    run = loop(small, 2, Scripted(script, 2.0), model(save_s=[[8.0]]).table(8.0))
    assert run.end_s.tolist() == [83.0, 48.0, 32.0, 16.0]  # the node has memory for all three


@LOOPS
def test_memory_of_tasks_that_were_saved_is_free_again(loop):
    both = {1: (0, 1.0), 2: (0, 1.0)}
    script = {0: {0: (0, 1.0)}, 10: {}, 20: {1: (0, 1.0)}, 21: both, 60: {0: (0, 1.0)}}
    jobs = [job(0, 0, 30, mem=0.6), job(1, 20, 20, mem=0.3), job(2, 21, 4, mem=0.6)]
    run = loop(jobs, 1, Scripted(script, 10.0), model(save_s=[[8.0]]).table(8.0))
    assert run.end_s[2] == 25.0  # 0.6 beside 0.3; the 0.6 that were saved until 18 are free


@LOOPS
def test_a_job_resumes_only_when_its_own_images_are_written(loop):
    script = {0: {0: ([0, 1], 1.0)}, 10: {}, 12: {0: ([2, 3], 1.0)}}
    run = loop([job(0, 0, 30, tasks=2)], 4, Scripted(script, 2.0), model(save_s=[[8.0]]).table(8.0))
    assert run.end_s[0] == 18.0 + 3.0 + 20.0
    assert run.penalty_s[0] == 9.0


@LOOPS
def test_jobs_that_change_places_wait_for_each_other_but_not_for_those_that_stay(loop):
    script = {0: {0: ([0, 1], 0.5), 1: (2, 1.0)}, 10: {0: ([1, 2], 0.5), 1: (0, 1.0)}}
    jobs = [job(0, 0, 20, tasks=2, mem=0.6), job(1, 0, 20, mem=0.6)]
    saved = model(save_s=[[8.0]])
    run = loop(jobs, 3, Scripted(script, 10.0), saved.table(8.0))
    assert run.end_s.tolist() == [10.0 + 8.0 + 6.0 + 30.0, 10.0 + 8.0 + 6.0 + 10.0]
    assert run.moves.tasks.tolist() == [1, 1]
    longer = replace(saved, migration_s=np.array([[20.0]]))
    by_images = replace(longer, migrates="save-restore")  # both are saved at the same time, as a part of the 20 s
    run = loop(jobs, 3, Scripted(script, 10.0), by_images.table(8.0))
    assert run.end_s.tolist() == [10.0 + 20.0 + 30.0, 10.0 + 20.0 + 10.0]


@LOOPS
def test_a_guest_that_migrates_live_occupies_its_old_place_until_it_has_moved(loop):
    live = replace(model(save_s=[[8.0]]), migration_s=np.array([[20.0]]), migrates="live")
    script = {0: {0: (0, 1.0), 1: (1, 1.0)}, 10: {0: (1, 1.0), 2: (0, 1.0)}, 100: {1: (0, 1.0)}}
    jobs = [job(0, 0, 30, mem=0.6), job(1, 0, 30, mem=0.6), job(2, 10, 5, mem=0.6)]
    run = loop(jobs, 2, Scripted(script, 10.0), live.table(8.0))
    assert run.end_s[0] == 18.0 + 20.0 + 20.0, "its new place is free from 18 on"
    assert run.end_s[2] == 38.0 + 5.0


@LOOPS
def test_an_operation_that_has_not_begun_when_its_job_is_paused_is_never_done(loop):
    costs = model(start_s=[[7.0]], save_s=[[8.0]])
    script = {0: {0: (0, 1.0)}, 10: {1: (0, 1.0)}, 12: {2: (0, 1.0)}, 60: {1: (0, 1.0)}, 100: {0: (0, 1.0)}}
    jobs = [job(0, 0, 30, mem=0.6), job(1, 10, 20, mem=0.6), job(2, 12, 4, mem=0.6)]
    run = loop(jobs, 1, Scripted(script, 2.0), costs.table(8.0))
    assert run.end_s[2] == 18.0 + 7.0 + 4.0, "job 0 is saved until 18; nothing of job 1 is there to be saved"
    assert run.end_s[1] == 60.0 + 7.0 + 20.0, "it starts, as it never ran"
    moved = {0: {0: (0, 1.0)}, 10: {1: (0, 1.0)}, 12: {1: (1, 1.0)}, 100: {0: (0, 1.0)}}
    run = loop(jobs[:2], 2, Scripted(moved, 2.0), costs.table(8.0))
    assert run.end_s[1] == 12.0 + 7.0 + 20.0


@LOOPS
def test_a_job_waits_only_as_long_as_memory_is_short(loop):
    saved = model(save_s=[[8.0]])
    half = {0: (0, 0.5), 1: (0, 0.5)}
    script = {0: half, 10: {1: (0, 0.5)}, 15: {}, 20: {2: (0, 1.0)}, 60: half}
    jobs = [job(0, 0, 30, mem=0.5), job(1, 0, 30, mem=0.3), job(2, 20, 4, mem=0.4)]
    run = loop(jobs, 1, Scripted(script, 5.0), saved.table(8.0))
    assert run.end_s[2] == 20.0 + 4.0, "at 20 only the image of job 1 is being written: 0.3 + 0.4"
    script = {0: {0: (0, 1.0)}, 10: {}, 12: {0: (0, 0.5), 1: (0, 0.5)}}
    both = [job(0, 0, 30, mem=0.6), job(1, 12, 4, mem=0.3)]
    run = loop(both, 1, Scripted(script, 2.0), saved.table(8.0))
    assert run.end_s.tolist() == [18.0 + 3.0 + 40.0, 12.0 + 8.0], "its own image does not count twice"


@LOOPS
def test_starts_alone_are_done_before_what_follows_them(loop):
    script = {0: {0: (0, 1.0)}, 2: {}, 3: {0: (0, 1.0)}}
    run = loop([job(0, 0, 20)], 1, Scripted(script, 1.0), model(start_s=[[7.0]]).table(8.0))
    assert run.end_s.tolist() == [7.0 + 3.0 + 20.0]


@LOOPS
def test_images_of_a_migration_are_written_before_it_goes_on(loop):
    """Two guests leave a node for two others: their saves share its disk."""
    costs = by_tasks(10, 12, per_node=True, save_s=np.array([[4.0], [9.0]]), migrates="save-restore")
    script = {0: {0: (0, 0.5), 1: (0, 0.5)}, 10: {0: (1, 0.5), 1: (2, 0.5)}}
    run = loop([job(0, 0, 20), job(1, 0, 20)], 3, Scripted(script, 10.0), costs.table(8.0))
    assert run.end_s.tolist() == [10.0 + 9.0 + (10.0 - 4.0) + 30.0] * 2


@LOOPS
def test_an_operation_on_a_job_begins_when_the_previous_one_has_ended(loop):
    starts = model(start_s=[[7.0]], save_s=[[8.0]])
    moved = loop([job(0, 0, 20)], 2, Scripted({0: {0: (0, 1.0)}, 2: {0: (1, 1.0)}}, 2.0), starts.table(8.0))
    assert moved.end_s.tolist() == [7.0 + 6.0 + 20.0]
    script = {0: {0: (0, 1.0)}, 2: {1: (0, 1.0)}, 60: {0: (0, 1.0)}}
    jobs = [job(0, 0, 20, mem=0.6), job(1, 2, 20, mem=0.6)]
    paused = loop(jobs, 1, Scripted(script, 2.0), starts.table(8.0))
    assert paused.end_s.tolist() == [60.0 + 3.0 + 20.0, 7.0 + 8.0 + 7.0 + 20.0]
    papers = loop([job(0, 0, 20)], 2, Scripted({0: {0: (0, 1.0)}, 2: {0: (1, 1.0)}}, 2.0), model().table(8.0))
    assert papers.end_s.tolist() == [2.0 + 6.0 + 18.0]


@LOOPS
def test_a_job_that_resumes_on_other_nodes_gets_its_images_first(loop):
    sent = model(save_s=[[8.0]], transfer_s=[[5.0]])
    script = {0: {0: ([0, 1], 1.0)}, 10: {}, 12: {0: ([2, 3], 1.0)}}
    run = loop([job(0, 0, 30, tasks=2)], 4, Scripted(script, 2.0), sent.table(8.0))
    assert run.end_s[0] == 18.0 + 3.0 + 5.0 + 20.0
    run = loop([job(0, 0, 30, tasks=2)], 4, Scripted({**script, 12: {0: ([1, 0], 1.0)}}, 2.0), sent.table(8.0))
    assert run.end_s[0] == 18.0 + 3.0 + 20.0  # tasks of a job are interchangeable


@LOOPS
@pytest.mark.parametrize(("per_node", "took_s"), [(False, [7.0, 7.0, 7.0]), (True, [3.0, 3.0, 1.0])])
def test_concurrency_is_that_of_the_worst_node_or_of_the_cluster(loop, per_node, took_s):
    # At 20 two tasks move to node 0, one to node 1 and one to node 2: one task takes 1 s, two 3 s, four 7 s.
    running = {0: ([0, 1], 0.25), 1: (0, 0.25), 2: (2, 0.25)}
    script = {0: running, 10: {}, 20: running}
    jobs = [job(0, 0, 10, tasks=2), job(1, 0, 10), job(2, 0, 10)]
    run = loop(jobs, 3, Scripted(script, 10.0), by_tasks(1, 3, per_node=per_node).table(8.0))
    assert run.penalty_s.tolist() == took_s


@LOOPS
@pytest.mark.parametrize(("start_s", "penalty_s"), [([[5.0], [7.0]], [5.0 + 3.0, 7.0]), (None, [1.0, 0.0])])
@pytest.mark.parametrize("per_node", [False, True])
def test_starts_count_among_those_that_move_at_once_if_they_cost(loop, start_s, penalty_s, per_node):
    script = {0: {0: (0, 1.0)}, 10: {}, 20: {0: (0, 0.5), 1: (0, 0.5)}}
    overheads = by_tasks(1, 3, per_node=per_node, start_s=None if start_s is None else np.array(start_s))
    run = loop([job(0, 0, 15), job(1, 20, 10)], 1, Scripted(script, 10.0), overheads.table(8.0))
    assert run.penalty_s.tolist() == penalty_s


@LOOPS
def test_measured_progress_is_how_virtual_time_grows_and_cpu_is_still_the_yield(loop):
    curves = Progress(np.array([0.5, 1.0]), np.array([0.4, 1.0]), np.array([0.6, 1.0]))
    script = {0: {0: (0, 0.5), 1: ([1, 1], 0.25)}, 10: {0: (0, 0.75), 1: ([1, 1], 1.0)}}
    jobs = [job(0, 0, 11), job(1, 0, 13, tasks=2)]
    run = loop(jobs, 2, Scripted(script, 10.0), model(progress=curves).table(8.0))
    # Job 0: 4 s by 10, then half way from 0.4 to 1. Job 1: half of 0.6 for 10 s, then all.
    assert run.end_s == pytest.approx([10 + (11 - 4) / 0.7, 10 + (13 - 3)])
    assert run.virtual_time_s.tolist() == [11.0, 13.0]
    # Both want 1.5 CPUs until 20 and get 2; useful is the work: 5.5 + 13 CPU seconds.
    assert measure(run, None, 8.0).underutilization == pytest.approx((1.5 * 20 - 18.5) / 18.5)


def test_batch_jobs_hold_their_nodes_while_they_start_and_easy_does_not_know():
    table = by_tasks(5, 9, start_s=np.array([[5.0], [9.0]])).table(8.0)
    # Job 2 ends at its estimate, 10, of which the reservation of job 1 is made; job 3 fits before it and is late.
    jobs = [job(0, 0, 10), job(1, 1, 10, tasks=2), job(2, 2, 8)]
    easy = schedule_batch(jobs, 2, parse("EASY"), NEVER, overheads=table)
    assert easy.start_s.tolist() == [0.0, 15.0, 2.0]
    assert easy.penalty_s.tolist() == [5.0, 9.0, 5.0]
    assert easy.end_s.tolist() == [15.0, 34.0, 15.0]
    longer = [*jobs[:2], job(2, 2, 9)]  # by its estimate it ends after the shadow time of 10
    assert schedule_batch(longer, 2, parse("EASY"), NEVER, overheads=table).start_s.tolist() == [0.0, 15.0, 24.0 + 10.0]
    by_node = replace(by_tasks(5, 9, start_s=np.array([[5.0], [9.0]])), per_node=True).table(8.0)
    assert schedule_batch(jobs, 2, parse("FCFS"), NEVER, overheads=by_node).penalty_s.tolist() == [5.0] * 3
    run = simulate(jobs, 2, parse("FCFS"), by_tasks(5, 9, start_s=np.array([[5.0], [9.0]])), compiling=NEVER)
    assert run.end_s.tolist() == [15.0, 34.0, 47.0]
    assert run.penalty_s.tolist() == [5.0, 9.0, 5.0]


def test_a_calibration_has_all_of_it_and_scales_with_the_time(tmp_path):
    file = tmp_path / "calibration.toml"
    file.write_text(FILE)
    found = parse_overheads(str(file))
    assert found.wall_clock
    table = found.scaled(60.0).table(8.0)
    assert table.beyond[:5] == (True, True, True, True, True)
    assert table.beyond.save_s.tolist() == [[120, 240], [240, 480]]
    assert table.beyond.start_s.tolist() == [[60, 60], [180, 180]]
    assert table.beyond.transfer_s.tolist() == [[60, 120], [120, 240]]
    assert (table.beyond.by_images, table.beyond.by_copies) == (True, False)
    assert table.penalties.migration_s.tolist() == [[360, 600], [720, 1200]]
    assert table.beyond.yields.tolist() == [0.0, 0.5, 1.0]
    assert table.beyond.parallel_rates.tolist() == [0.0, 0.6, 1.0]
    assert not found.scaled(60.0).wall_clock
    one = parse_overheads(f"{file}#constant")
    mean_s = ((2 + 4 + 4 + 8 + 3 + 5 + 6 + 10) + (6 + 10 + 12 + 20)) / 8
    assert one.resume_s.tolist() == one.migration_s.tolist() == [[mean_s]]
    assert (one.wall_clock, one.table(8.0).beyond.any, one.name) == (True, False, f"{file}#constant")
    with pytest.raises(
        UserError,
        match=r"expected #constant, #extrapolate, #save-restore, #live, #cheaper or nothing after the file; "
        r"nearest: constant",
    ):
        parse_overheads(f"{file}#constnat")


def test_tasks_much_larger_than_what_was_measured_are_refused_unless_that_is_asked_for(tmp_path):
    file = tmp_path / "calibration.toml"
    file.write_text(FILE)
    most_gb = 2 * parse_overheads(str(file)).memory_gb[-1]
    one = [Job(1, 0.0, 1, 1.0, 0.5, 10.0)]
    simulate(one, 1, parse("FCFS"), parse_overheads(str(file)), node_memory_gb=2 * most_gb)
    with pytest.raises(UserError, match=r"tasks of job 1 have .* GB, more than twice .* FILE.toml#extrapolate$"):
        simulate(one, 1, parse("FCFS"), parse_overheads(str(file)), node_memory_gb=2.01 * most_gb)
    asked = parse_overheads(f"{file}#extrapolate")
    assert asked.name == f"{file}#extrapolate"
    simulate(one, 1, parse("FCFS"), asked, node_memory_gb=8 * most_gb)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"node"', '"nodes"', "concurrent_per = 'nodes'.*'cluster' or 'node'"),
        ("[[1, 1], [3, 3]]", "[[1, 1]]", r"start_s is \(1, 2\): expected \(2, 2\)"),
        ("[[2, 4], [4, 8]]", "[[2, 4], [4]]", "save_s = .*rows of equal length"),
        ('"save-restore"', '"copies"', "migration = 'copies'.*'save-restore' or 'live'"),
        ("[0.5, 1.0]", "[0.5, 0.9]", "progress.yield_frac must increase, from more than 0 to 1"),
        ("[0.4, 1.0]", "[0.4]", "progress.serial has 1 rates: expected 2"),
        ("[0.6, 1.0]", "[0, 1.0]", "progress.parallel.0 = 0.*greater than 0"),
        ("parallel =", "paralel =", "unknown key overheads.progress.paralel; nearest: parallel"),
    ],
)
def test_wrong_tables_beyond_penalties_are_explained(tmp_path, old, new, message):
    file = tmp_path / "calibration.toml"
    file.write_text(FILE.replace(old, new, 1))
    with pytest.raises(UserError, match=message) as caught:
        parse_overheads(str(file))
    assert str(caught.value).startswith(str(file))


FRACTIONAL = [name for name in available() if isinstance(parse(name), DfrsPolicy)]


@st.composite
def models(draw):
    def seconds(top):
        return np.array(draw(st.tuples(*[st.sampled_from([0.0, 1.5, 40.0, top])] * 4))).reshape(2, 2)

    progress = Progress(np.array([0.3, 1.0]), np.array([0.2, 1.0]), np.array([0.4, 1.0]))
    return Overheads(
        "drawn",
        np.array([1.0, 3.0]),
        np.array([1.0, 4.0]),
        resume_s=seconds(300.0),
        migration_s=seconds(500.0),
        start_s=draw(st.sampled_from([None, seconds(90.0)])),
        save_s=draw(st.sampled_from([None, seconds(200.0)])),
        transfer_s=draw(st.sampled_from([None, seconds(60.0)])),
        migrates=draw(st.sampled_from(["", "save-restore", "live"])),
        per_node=draw(st.booleans()),
        progress=draw(st.sampled_from([None, progress])),
    )


@st.composite
def traces(draw):
    jobs, time_s = [], 0.0
    for number in range(draw(st.integers(1, 9))):
        time_s += draw(st.sampled_from([0.0, 1.0, 37.3, 600.0]))
        frac = draw(st.sampled_from([0.25, 1.0])), draw(st.sampled_from([0.1, 0.3, 0.5, 1.0]))
        run_s = draw(st.sampled_from([30.0, 777.7, 3000.0]))
        jobs.append(Job(number + 1, time_s, draw(st.integers(1, 4)), *frac, run_s))
    return jobs


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(traces(), st.sampled_from(FRACTIONAL), models())
def test_both_loops_come_to_the_same_bits_with_all_of_it(jobs, name, overheads):
    policy, table = parse(name), overheads.table(8.0)
    one = run_loop(jobs, 4, policy, table, debug=True, compiling=NEVER, record=True)
    other = run_loop(jobs, 4, policy, table, debug=True, record=True, views=True)
    for field in FIELDS:
        np.testing.assert_array_equal(getattr(one, field), getattr(other, field), err_msg=field)
    assert one.decisions == other.decisions
    assert np.all(one.end_s - one.start_s >= one.run_time_s + one.penalty_s - 1e-6)


def test_debug_names_a_job_that_begins_on_a_node_that_is_held(monkeypatch):
    monkeypatch.setattr(moving, "node_has_room", lambda _node, _row, from_s, *_: from_s)
    policy = Scripted({0: {0: (0, 1.0)}, 10: {1: (0, 1.0)}}, 10.0)
    with pytest.raises(RunError, match="at 10 s: job 1 makes progress on a node that is full of tasks that left"):
        on_arrays([job(0, 0, 30, mem=0.6), job(1, 10, 20, mem=0.6)], 1, policy, model(save_s=[[8.0]]).table(8.0))


@pytest.mark.slow
@pytest.mark.skipif(not can_compile(), reason="numba is an extra")
def test_the_compiled_loops_come_to_the_bits_of_the_plain_ones_with_all_of_it(tmp_path):
    file = tmp_path / "calibration.toml"
    file.write_text(FILE)
    measured = parse_overheads(f"{file}#extrapolate")
    overheads = replace(
        measured, parallel=ParallelExtra(0.5, 0.25, 1.0, 2.0, 0.75), beside=BesideRunning(0.3, 0.2, 0.4)
    )
    overheads = overheads.scaled(20.0)
    jobs = synthetic_trace(16, 60, 3)
    for name in ("GreedyPM */per/OPT=MIN/MINVT=600", "MCB8 */OPT=MIN/MINVT=600", "/stretch-per/OPT=MAX", "EASY"):
        plain = simulate(jobs, 16, parse(name), overheads, compiling=NEVER)
        found = simulate(jobs, 16, parse(name), overheads, debug=True)
        for field in FIELDS:
            np.testing.assert_array_equal(getattr(plain, field), getattr(found, field), err_msg=f"{name} {field}")
        assert plain.penalty_s.sum() > 0


BESIDE = BesideRunning(start_frac=0.5, save_frac=0.25, resume_frac=1.0)


@LOOPS
@pytest.mark.parametrize(("per_node", "beside"), [(False, 3), (True, 2)])
def test_a_start_takes_longer_for_each_task_that_runs_on_the_node_or_in_the_cluster(loop, per_node, beside):
    """Jobs 0 and 1 run on node 0, job 2 on node 1, when job 3 starts on node 0."""
    jobs = [job(0, 0, 100, cpu=0.25), job(1, 0, 100, cpu=0.25), job(2, 0, 100), job(3, 50, 10, cpu=0.25)]
    before = {0: (0, 1.0), 1: (0, 1.0), 2: (1, 1.0)}
    overheads = model(start_s=[[8.0]], beside=BESIDE, per_node=per_node)
    run = loop(jobs, 2, Scripted({0: before, 50: {**before, 3: (0, 1.0)}}), overheads.table(8.0))
    assert run.penalty_s.tolist() == [8.0, 8.0, 8.0, 8.0 * (1.0 + 0.5 * beside)], "the first three come together"
    assert run.end_s[3] == 50.0 + run.penalty_s[3] + 10.0


@LOOPS
def test_saves_and_resumes_take_longer_beside_running_tasks_and_transfers_do_not(loop):
    """Job 0 is paused beside job 1, for job 2, which needs its memory; then it resumes on node 1 beside job 3."""
    jobs = [job(0, 0, 100, mem=0.75), job(1, 0, 200), job(2, 20, 50, mem=0.75), job(3, 0, 200)]
    others = {1: (0, 1.0), 3: (1, 1.0)}
    script = {0: {**others, 0: (0, 1.0)}, 20: {**others, 2: (0, 1.0)}, 75: {**others, 0: (1, 1.0)}}
    overheads = model(save_s=[[4.0]], transfer_s=[[2.0]], beside=BESIDE, per_node=True)
    run = loop(jobs, 2, Scripted(script), overheads.table(8.0))
    saved_s, resumed_s = 4.0 * 1.25, 3.0 * 2.0 + 2.0
    assert run.end_s[2] == 20.0 + saved_s + 50.0
    assert run.end_s[0] == 75.0 + resumed_s + 80.0


@LOOPS
def test_models_without_starts_and_saves_know_no_neighbours(loop):
    jobs = [job(0, 0, 100), job(1, 0, 200), job(2, 20, 20)]
    script = {0: {0: (0, 1.0), 1: (0, 1.0)}, 20: {1: (0, 1.0), 2: (0, 1.0)}, 40: {0: (0, 1.0), 1: (0, 1.0)}}
    run = loop(jobs, 1, Scripted(script), model(beside=BESIDE).table(8.0))
    assert run.end_s[0] == 40.0 + 3.0 + 80.0


@pytest.mark.parametrize(("per_node", "penalty_s"), [(False, 12.0), (True, 8.0)])
@pytest.mark.parametrize("policy", ["FCFS", "EASY"])
def test_batch_jobs_start_beside_busy_nodes_only_if_the_cluster_counts(policy, per_node, penalty_s):
    jobs = [job(0, 0, 100), job(1, 50, 10)]
    run = simulate(jobs, 2, parse(policy), model(start_s=[[8.0]], beside=BESIDE, per_node=per_node), compiling=NEVER)
    assert run.penalty_s.tolist() == [8.0, penalty_s]
    assert run.end_s.tolist() == [108.0, 60.0 + penalty_s]


@LOOPS
@pytest.mark.parametrize(
    ("per_node", "penalties_s"), [(False, [4.0 + 4.0 * 0.5, 12.0, 12.0]), (True, [4.0 + 4.0 * 0.25, 8.0, 4.0])]
)
def test_tasks_that_move_at_once_count_by_the_memory_that_they_share_the_rate_for(loop, per_node, penalties_s):
    """A task of a quarter of the memory counts for a quarter beside a larger one, which counts for one beside it."""
    jobs = [job(0, 0, 100, mem=0.5), job(1, 0, 100), job(2, 0, 100)]
    overheads = by_tasks(4, 8, start_s=np.array([[4.0], [8.0]]), per_node=per_node)
    run = loop(jobs, 2, Scripted({0: {0: (0, 1.0), 1: (0, 1.0), 2: (1, 1.0)}}), overheads.table(8.0))
    assert run.penalty_s.tolist() == penalties_s


@LOOPS
@pytest.mark.parametrize("per_node", [False, True])
def test_tasks_that_are_saved_at_once_count_by_their_memory(loop, per_node):
    """Job 2 has room on the node as soon as job 0, the larger of two that leave it, is saved."""
    jobs = [job(0, 0, 100, mem=0.5), job(1, 0, 100), job(2, 20, 10, mem=0.875)]
    overheads = by_tasks(3, 3, save_s=np.array([[4.0], [8.0]]), per_node=per_node)
    script = {0: {0: (0, 1.0), 1: (0, 1.0)}, 20: {2: (0, 1.0)}, 35: {0: (0, 1.0), 1: (0, 1.0)}}
    run = loop(jobs, 1, Scripted(script), overheads.table(8.0))
    assert run.end_s[2] == 20.0 + (4.0 + 4.0 * 0.25) + 10.0


@pytest.mark.parametrize("policy", ["FCFS", "EASY"])
def test_batch_jobs_that_start_at_once_count_by_their_memory(policy):
    jobs = [job(0, 0, 100, mem=0.5), job(1, 0, 100)]
    overheads = by_tasks(4, 8, start_s=np.array([[4.0], [8.0]]))
    assert simulate(jobs, 2, parse(policy), overheads, compiling=NEVER).penalty_s.tolist() == [5.0, 8.0]


def test_fractions_of_neighbours_are_checked():
    with pytest.raises(ValueError, match=r"beside\.save_frac must be finite and not negative"):
        BesideRunning(save_frac=-0.1)


def test_jobs_of_several_tasks_take_longer_where_that_was_measured():
    free = constant(0.0)
    more = replace(free, parallel=ParallelExtra(start_s=5.0, save_s=3.0, resume_s=7.0, migration_s=9.0))
    serial, pair = Job(1, 0.0, 1, 1.0, 0.2, 100.0), Job(2, 0.0, 2, 1.0, 0.2, 100.0)
    for policy in ("FCFS", "EASY", "Greedy */OPT=MIN"):
        assert simulate([serial], 2, parse(policy), more, compiling=NEVER).end_s.tolist() == [100.0]
        assert simulate([pair], 2, parse(policy), more, compiling=NEVER).end_s.tolist() == [105.0]
    # job 3 does not fit beside job 2, whose save takes 3 s; job 2 resumes at the end of job 3
    jobs = [replace(pair, mem_req_frac=0.6), Job(3, 50.0, 1, 1.0, 0.6, 10.0)]
    run = simulate(jobs, 2, parse("GreedyP */OPT=MIN"), more, debug=True, compiling=NEVER)
    assert run.preemptions.tolist() == [1, 0]
    assert run.end_s.tolist() == [105.0 + 3.0 + 10.0 + 7.0, 50.0 + 3.0 + 10.0]
    large = replace(free, parallel=ParallelExtra(start_s=5.0, start_s_per_gb=10.0))
    for policy in ("FCFS", "Greedy */OPT=MIN"):  # 0.2 of a node of 8 GB
        run = simulate([pair], 2, parse(policy), large, node_memory_gb=8.0, compiling=NEVER)
        assert run.end_s.tolist() == [pytest.approx(100.0 + 5.0 + 16.0)]
        run = simulate([serial], 2, parse(policy), large, node_memory_gb=8.0, compiling=NEVER)
        assert run.end_s.tolist() == [100.0]
    assert large.scaled(2.0).parallel == ParallelExtra(start_s=10.0, start_s_per_gb=20.0)
    assert more.scaled(2.0).parallel == ParallelExtra(10.0, 6.0, 14.0, 18.0)
    with pytest.raises(ValueError, match=r"parallel\.save_s must be finite and not negative"):
        ParallelExtra(save_s=-1.0)
