"""Trials of a synthetic lab: times and rates by known laws, with noise, in the form of the experiments' results."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from testbed.study.calibration.trials import Outcome, Trials

SIZES_MIB = (128, 256, 512, 1024)
AT_ONCE = (1, 2, 4)
SAVE_FIXED_S, SAVE_MIB_PER_S, SAVE_TOTAL_MIB_PER_S = 0.4, 200.0, 300.0
RESTORE_FIXED_S, RESTORE_MIB_PER_S, FIRST_PROGRESS_S = 0.3, 1000.0, 0.2
TRANSFER_FIXED_S, TRANSFER_MIB_PER_S = 0.1, 400.0
LIVE_FELT_S, START_S = 0.05, 2.5
BESIDE_FRAC = {"start": 0.4, "save": 0.2, "resume": 0.3}  # by which each neighbour makes an operation longer
BEGIN: dict[str, Any] = {
    "kind": "begin",
    "created_unix_s": 1_700_000_000.0,
    "lab": "never-was",
    "seed": 7,
    "migration": "save-restore",
    "experiments": ["bus"],
    "skipped": {},
    "nodes": {"n1": {"kernel": "6.1", "cpu_model": 'a "fast" one', "versions": {"qemu": "7.2"}, "machine": None}},
}


def save_s(memory_mib: float, at_once: int) -> float:
    return SAVE_FIXED_S + memory_mib * max(1 / SAVE_MIB_PER_S, at_once / SAVE_TOTAL_MIB_PER_S)


def restore_s(memory_mib: float) -> float:
    return RESTORE_FIXED_S + memory_mib / RESTORE_MIB_PER_S


def synthetic_trials(
    blocks: int = 6, *, noise: float = 0.02, seed: int = 1, begin: Mapping[str, Any] = BEGIN, only: tuple[str, ...] = ()
) -> Trials:
    """Return trials of all experiments, or of some `only`."""
    draw = np.random.default_rng(seed)
    outcomes: list[Outcome] = []
    for block in range(blocks):
        for experiment, condition, clean in _observations():
            if only and experiment not in only:
                continue
            of_trial = draw.normal(1.0, noise)  # a factor that the guests of one trial have in common
            observations = tuple(
                {name: _noisy(name, value, of_trial * draw.normal(1.0, noise / 2)) for name, value in one.items()}
                for one in clean
            )
            outcomes.append(
                Outcome(
                    trial=len(outcomes) + 1,
                    experiment=experiment,
                    block=block,
                    condition=condition,
                    observations=observations,
                    foreign_cpu_frac=0.01,
                )
            )
    return Trials(dict(begin), outcomes)


def _noisy(name: str, value: Any, factor: float) -> Any:
    return value if name in {"window_s", "requested_cores", "yield_frac"} else value * factor


def _observations() -> Iterator[tuple[str, dict[str, Any], list[dict[str, Any]]]]:
    for mib in SIZES_MIB:
        for n in AT_ONCE:
            one = {
                "save_s": save_s(mib, n), "restore_s": restore_s(mib), "first_progress_s": FIRST_PROGRESS_S,
                "penalty_s": save_s(mib, n) + restore_s(mib) + FIRST_PROGRESS_S, "felt_s": save_s(mib, n),
            }  # fmt: skip
            under = {"memory_mib": mib, "touched_frac": 1.0, "storage": "disk", "concurrent": n, "cache": "warm"}
            yield "save-restore", {**under, "program": "eatcpu"}, [one] * n
        yield (
            "transfer",
            {"memory_mib": mib, "touched_frac": 1.0, "concurrent": 1},
            [{"transfer_s": TRANSFER_FIXED_S + mib / TRANSFER_MIB_PER_S}],
        )
        yield (
            "live-migration",
            {"memory_mib": mib, "touched_frac": 1.0, "concurrent": 1},
            [{"migrate_s": 1.0 + mib / 100, "downtime_reported_s": 0.02, "felt_s": LIVE_FELT_S}],
        )
        yield (
            "start",
            {"memory_mib": mib, "tasks": 1, "concurrent": 1},
            [{"start_s": START_S - 0.5, "first_progress_s": 0.5, "ready_s": START_S}],
        )
    half = {"memory_mib": 512, "touched_frac": 0.5, "storage": "disk", "concurrent": 1, "cache": "warm"}
    yield "save-restore", {**half, "program": "eatcpu"}, [{"penalty_s": 0.6 * (save_s(512, 1) + restore_s(512) + 0.2)}]
    yield (
        "mpi-save-restore",
        {"memory_mib": 128, "tasks": 2, "topology": "ring", "moved": 1},
        [
            {
                "save_s": 1.0,
                "restore_s": 0.5,
                "penalty_s": 1.7,
                "felt_s": 1.6,
                "hold_skew_s": 0.01,
                "release_skew_s": 0.02,
            }
        ],
    )
    yield "enactment", {"command": "cap", "guests": 4}, [{"round_trip_s": 0.005}] * 5
    yield "bus", {}, [{"round_trip_s": 0.0004}] * 50
    yield "decision", {"policy": "Greedy */OPT=MIN", "jobs": 20, "nodes": 4}, [{"decide_s": 0.002}] * 5
    for cap in (0.1, 0.5):
        yield (
            "cap-accuracy",
            {"cap_frac": cap, "vcpus": 2},
            [
                {"window_s": window_s, "requested_cores": 2 * cap, "used_cores": 2 * cap + 0.01}
                for window_s in (0.1, 0.1003, 1.0)
            ],
        )
    yield "cap-response", {"from_frac": 1.0, "to_frac": 0.2, "vcpus": 1}, [{"command_s": 0.005, "response_s": 0.15}]
    for kind, tasks, bent in (("serial", 1, 0.0), ("parallel", 2, 0.1)):
        yield (
            "proportionality",
            {"kind": kind, "tasks": tasks, "topology": "ring"},
            [{"yield_frac": y, "relative_rate": y + bent * (1 - y), "units_per_s": 100 * y} for y in (0.25, 0.5, 1.0)],
        )
    for neighbours in (0, 3):
        yield "isolation", {"cap_frac": 0.25, "neighbours": neighbours}, [{"relative_rate": 1.0 - 0.02 * neighbours}]
    for neighbours in (1, 2, 3):
        alone = {"start_s": START_S, "save_s": save_s(128, 1), "resume_s": restore_s(128) + FIRST_PROGRESS_S}
        beside = {
            f"beside_{name}_s": alone[f"{name}_s"] * (1.0 + frac * neighbours) for name, frac in BESIDE_FRAC.items()
        }
        yield "beside", {"neighbours": neighbours}, [{"running": neighbours} | alone | beside]
    for where, cap, rate in (("native", 1.0, 1000.0), ("guest", 1.0, 950.0), ("capped-guest", 0.5, 475.0)):
        yield (
            "virtualisation",
            {"program": "eatcpu", "where": where, "ranks": 1, "iteration_s": 0.02, "cap_frac": cap},
            [{"units_per_s": rate, "units_per_cpu_s": rate / cap}],
        )
