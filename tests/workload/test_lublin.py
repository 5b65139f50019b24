import ctypes
import hashlib
import math
from dataclasses import replace
from functools import cache
from itertools import pairwise
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import gammainc
from support.workload.workload_strategies import deterministic, traces

from testbed.errors import UserError
from testbed.scheduling.workload.drand48 import Drand48
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.lublin import generate
from testbed.scheduling.workload.synthetic import annotate, synthetic_trace
from testbed.scheduling.workload.variates import gamma_cdf, gamma_variate

seeds = st.integers(0, 2**32 - 1)


@deterministic
@given(seeds, st.integers(1, 400))
def test_drand48_against_its_closed_form(seed, n):
    a, c, m = 0x5DEECE66D, 0xB, 2**48
    x0 = seed * 2**16 + 0x330E
    geometric = (pow(a, n, m * (a - 1)) - 1) // (a - 1)
    uniform = Drand48(seed)
    last = [uniform() for _ in range(n)][-1]
    assert last == (pow(a, n, m) * x0 + c * geometric) % m / m


@deterministic
@given(seeds)
def test_drand48_against_the_c_library(seed):
    libc = ctypes.CDLL(None)
    libc.drand48.restype = ctypes.c_double
    libc.srand48.argtypes = [ctypes.c_long]
    libc.srand48(seed)
    uniform = Drand48(seed)
    assert [uniform() for _ in range(5)] == [libc.drand48() for _ in range(5)]


@deterministic
@given(st.floats(0.05, 60), st.floats(0.5, 20), st.floats(0.1, 10))
def test_gamma_cdf_against_scipy(x, shape, scale):
    assert math.isclose(gamma_cdf(x, shape, scale), gammainc(shape, x / scale), rel_tol=1e-10, abs_tol=1e-13)


@pytest.mark.parametrize(("shape", "scale"), [(0.3, 2.0), (1.0, 0.5), (3.8351, 0.6605), (12.0, 0.03)])
def test_gamma_variate_has_the_moments_of_its_distribution(shape, scale):
    uniform = Drand48(48)
    draws = [gamma_variate(uniform, shape, scale) for _ in range(20_000)]
    mean = fmean(draws)
    variance = fmean((value - mean) ** 2 for value in draws)
    assert math.isclose(mean, shape * scale, rel_tol=5 * shape**-0.5 / 20_000**0.5)  # five standard errors
    assert math.isclose(variance, shape * scale**2, rel_tol=0.1)


# Output of a C transcription of the authors' program, with the C library's drand48, log, exp and pow: the first jobs,
# and a digest of 2000 lines "submit nodes run type".
PROGRAM = {
    ("mixed", 1): ([(273, 8, 8), (1579, 8, 5), (1601, 4, 7)], "122d9de6228f1ea3d1803166434d5d50"),
    ("mixed", 2011): ([(76, 4, 39), (118, 1, 13), (129, 8, 2)], "b11eab1862ee9b79857f9f6ce5641b78"),
    ("typeless", 1): ([(5362, 4, 6), (6406, 8, 18), (6556, 32, 10804)], "72c13a1b8da81172650b77f0089a7ebe"),
    ("typeless", 2011): ([(152, 128, 415), (286, 4, 43), (4011, 8, 221)], "d3ae4faa91b32ad29441d3fcd34fe4fc"),
}


@pytest.mark.parametrize(("mode", "seed"), PROGRAM)
def test_traces_are_those_of_the_authors_program_bit_for_bit(mode, seed):
    first, digest = PROGRAM[mode, seed]
    jobs = generate(128, 2000, seed, mode)
    assert [(job.submit_time_s, job.nodes, job.run_time_s) for job in jobs[:3]] == first
    text = "".join(f"{job.submit_time_s} {job.nodes} {job.run_time_s} {job.job_class}\n" for job in jobs)
    assert hashlib.sha256(text.encode()).hexdigest()[:32] == digest


def test_large_sample_statistics_of_mixed_traces():
    made = [generate(128, 1000, seed) for seed in range(60)]
    jobs = [job for trace in made for job in trace]
    gaps_s = [(trace[-1].submit_time_s - trace[0].submit_time_s) / 999 for trace in made]
    found = {
        "serial": fmean(job.nodes == 1 for job in jobs),
        "powers of two": fmean(job.nodes.bit_count() == 1 for job in jobs),
        "mean size": fmean(job.nodes for job in jobs),
        "mean gap": fmean(gaps_s),
        "interactive": fmean(job.job_class == "interactive" for job in jobs),
    }
    expected = {"serial": 0.177, "powers of two": 0.865, "mean size": 9.1, "mean gap": 514, "interactive": 0.837}
    # Tolerances: about three standard errors of 60 traces; the gap varies most, by 20 % per trace.
    tolerance = {"serial": 0.005, "powers of two": 0.005, "mean size": 0.25, "mean gap": 60, "interactive": 0.025}
    for name, value in expected.items():
        assert abs(found[name] - value) < tolerance[name], (name, found)


# Published constants: serial share, share of powers of two, ULow, UMed, UHi, UProb.
SIZES = {
    "batch": (0.2927, 0.6686, 1.2, 5, 7, 0.875),
    "interactive": (0.1541, 0.625, 1, 3, 5.5, 0.705),
    "typeless": (0.244, 0.576, 0.8, 4.5, 7, 0.86),
}


def _expected_shares(serial, pow2, low, med, high, prob):
    """Serial share, share of powers of two and mean size, by quadrature over log2 of the size."""
    steps = 100_000
    powers_of_two = mean = 0.0
    for weight, start, end in ((prob, low, med), (1 - prob, med, high)):
        for i in range(steps):
            log2_size = start + (end - start) * (i + 0.5) / steps
            rounded, free = 2 ** math.floor(log2_size + 0.5), math.floor(2**log2_size + 0.5)
            powers_of_two += weight / steps * (free.bit_count() == 1)
            mean += weight / steps * (pow2 * rounded + (1 - serial - pow2) * free)
    return serial, serial + pow2 + (1 - serial - pow2) * powers_of_two, serial + mean


@cache
def _large_trace(mode):
    return generate(128, 15_000, 17, mode)


@pytest.mark.parametrize("kind", SIZES)
def test_sizes_follow_the_published_distribution(kind):
    mode, job_class = ("typeless", None) if kind == "typeless" else ("mixed", kind)
    sizes = [job.nodes for job in _large_trace(mode) if job.job_class == job_class]
    serial, pow2, mean = _expected_shares(*SIZES[kind])
    count = len(sizes)
    assert count > 1_500
    for found, expected in ((fmean(n == 1 for n in sizes), serial), (fmean(n.bit_count() == 1 for n in sizes), pow2)):
        assert abs(found - expected) < 4 * math.sqrt(expected * (1 - expected) / count)
    assert abs(fmean(sizes) - mean) < 4 * pstdev(sizes) / math.sqrt(count)


@deterministic
@given(st.integers(1, 3000), seeds, st.sampled_from(["mixed", "typeless"]))
def test_jobs_fit_any_machine_and_come_in_order(nodes, seed, mode):
    jobs = generate(nodes, 20, seed, mode)
    assert len(jobs) == 20
    assert all(1 <= job.nodes <= nodes and 1 <= job.run_time_s <= math.exp(12) for job in jobs)
    assert all(0 <= a.submit_time_s <= b.submit_time_s for a, b in pairwise(jobs))


def test_a_larger_machine_has_larger_jobs_and_the_same_share_of_serial_ones():
    small, large = generate(32, 3000, 5), generate(512, 3000, 5)
    assert fmean(job.nodes for job in large) > 4 * fmean(job.nodes for job in small)
    serial = [fmean(job.nodes == 1 for job in jobs) for jobs in (small, large)]
    assert abs(serial[0] - serial[1]) < 0.03
    assert max(job.nodes for job in small) == 32


def test_a_synthetic_trace_is_the_models_with_ids_and_needs():
    model_jobs = generate(128, 500, 3)
    jobs = synthetic_trace(128, 500, 3)
    assert [(job.submit_time_s, job.tasks, job.run_time_s, job.job_class) for job in jobs] == [
        (job.submit_time_s, job.nodes, job.run_time_s, job.job_class) for job in model_jobs
    ]
    assert [job.job_id for job in jobs] == list(range(1, 501))


def test_needs_follow_the_paper():
    jobs = annotate([Job(index, 0.0, 1 + index % 3, 1.0, 1.0, 1.0) for index in range(20_000)], 3)
    assert all(job.cpu_need_frac == (0.25 if job.tasks == 1 else 1.0) for job in jobs)
    for alike in (jobs, [job for job in jobs if job.tasks == 1]):  # memory does not depend on the size
        share = {mem: fmean(job.mem_req_frac == mem for job in alike) for mem in {job.mem_req_frac for job in alike}}
        assert set(share) == {x / 10 for x in range(1, 11)}
        three_errors = 3 / math.sqrt(len(alike))
        assert abs(share.pop(0.1) - 0.55) < three_errors * math.sqrt(0.55 * 0.45)
        assert all(abs(part - 0.05) < 1.2 * three_errors * math.sqrt(0.05 * 0.95) for part in share.values())


@deterministic
@given(traces(max_size=12), st.integers(0, 2**40))
def test_annotating_changes_nothing_but_the_needs(jobs, seed):
    annotated = annotate(jobs, seed)
    assert annotate(jobs, seed) == annotated == annotate(annotated, seed)
    kept = [
        replace(new, cpu_need_frac=old.cpu_need_frac, mem_req_frac=old.mem_req_frac)
        for old, new in zip(jobs, annotated, strict=True)
    ]
    assert kept == jobs
    assert all(job.cpu_need_frac == (0.25 if job.tasks == 1 else 1.0) for job in annotated)
    assert {job.mem_req_frac for job in annotated} <= {x / 10 for x in range(1, 11)}


def test_needs_depend_on_the_seed_alone():
    assert annotate(synthetic_trace(64, 200, 9), 9) == synthetic_trace(64, 200, 9)
    assert annotate(synthetic_trace(64, 200, 9), 10) != synthetic_trace(64, 200, 9)
    with pytest.raises(UserError, match="seed -1 of the needs: expected 0 or more"):
        annotate([], -1)


def test_the_seed_decides_everything():
    assert synthetic_trace(64, 200, 9) == synthetic_trace(64, 200, 9)
    assert synthetic_trace(64, 200, 9) != synthetic_trace(64, 200, 10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 5, 1), "5 jobs on 0 nodes: expected 1 or more"),
        ((4, 0, 1), "0 jobs on 4 nodes: expected 1 or more"),
        ((4, 5, -1), "seed -1: expected 0 to 4294967295"),
        ((4, 5, 2**32), "expected 0 to 4294967295"),
        ((4, 5, 1, "mixd"), "mode 'mixd': expected one of mixed, typeless; nearest: mixed"),
    ],
)
def test_impossible_traces_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        generate(*arguments)
