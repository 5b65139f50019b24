"""A fit that misses the observations is reported, and a good fit is not, with any noise of whole blocks."""

from __future__ import annotations

import numpy as np
import pytest

from testbed.study.calibration.experiments.save_restore import SaveRestore
from testbed.study.calibration.fits import Sample, fit_times
from testbed.study.calibration.trials import Outcome

SIZES = (64.0, 160.0, 400.0, 1000.0)


def sample(law, *, blocks: int = 10, noise: float = 0.03, seed: int = 1, block_noise: float = 0.0) -> Sample:
    draw = np.random.default_rng(seed)
    rows = []
    for block in range(blocks):
        slower = draw.lognormal(0.0, block_noise)
        rows += [(mib, 1.0, law(mib) * slower * draw.lognormal(0.0, noise), block) for mib in SIZES]
    memory, at_once, time_s, unit = map(np.array, zip(*rows, strict=True))
    return Sample(memory, at_once, time_s, unit)


def line(mib: float) -> float:
    return 0.5 + mib / 300


def bent(mib: float) -> float:
    """Large images are written at a lower rate than small ones."""
    return 0.1 + mib / 800 + (mib / 700) ** 2


def test_a_bent_law_is_told_and_its_medians_are_taken() -> None:
    found = fit_times(sample(bent))
    assert found.model == "linear"
    assert found.lack.shown
    assert abs(found.lack.worst_frac) > 0.1
    for mib in SIZES:
        assert found.measured_s(mib, 1) == pytest.approx(bent(mib), rel=0.05)
    assert abs(found.predict_s(400.0, 1) / bent(400.0) - 1) > 0.1, "the line misses the true value"


def test_a_line_is_kept() -> None:
    found = fit_times(sample(line))
    assert not found.lack.shown
    assert found.measured_s(400.0, 1) == found.predict_s(400.0, 1)


def test_the_test_is_seldom_wrong_about_lines_and_finds_bends() -> None:
    """Also if a whole block is slower than another by a fifth."""
    wrong = sum(fit_times(sample(line, seed=seed, block_noise=0.2)).lack.p < 0.05 for seed in range(40))
    assert wrong <= 6
    found = sum(fit_times(sample(bent, seed=seed, block_noise=0.1)).lack.shown for seed in range(20))
    assert found >= 18


def test_two_sizes_cannot_tell() -> None:
    two = sample(bent)
    keep = two.memory_mib < 200
    assert fit_times(Sample(two.memory_mib[keep], two.concurrent[keep], two.time_s[keep], two.trial[keep])).lack is None


def test_intervals_cover_the_truth_although_whole_blocks_are_slower() -> None:
    """Ten blocks, each with one of two speeds: trials of one block are not independent repeats."""
    covered = 0
    for seed in range(40):
        draw = np.random.default_rng(seed)
        outcomes = []
        for block in range(10):
            speed = draw.choice([1.0, 1.7])
            outcomes += [
                Outcome(
                    trial=100 * block + number, experiment="save-restore", block=block, t_s=0.0, elapsed_s=1.0,
                    condition={"memory_mib": 256, "concurrent": 1, "touched_frac": 1.0, "storage": "disk",
                               "cache": "warm", "program": "eatcpu"},
                    observations=[{"save_s": speed * draw.lognormal(0.0, 0.05)}],
                )
                for number in range(3)
            ]  # fmt: skip
        (quantity,) = SaveRestore().quantities(outcomes).named("save_s")
        covered += quantity.low <= 1.0 * 1.35 <= quantity.high  # the middle of the two
    assert covered >= 34
