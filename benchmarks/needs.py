"""DFRS with right, wrong and estimated CPU needs on the same jobs.

    python benchmarks/needs.py --seeds 20 --json needs.jsonl
    python benchmarks/needs.py --live 6 --json needs.jsonl
    python benchmarks/needs.py --table needs.jsonl

Four ways: needs declared right; declared wrong by a factor of 2, up or down at even odds, at most a node; the latter
with `/NEEDS=discovered`; and right declarations with `/NEEDS=discovered`, which shows the cost of estimation alone.
In half of the runs the need of each job falls to 40 % at half of its work (profile 1,0.4@0.5).

Measures: `too low frac` and `too high frac` of the jobs, by their declared needs (a need of a whole node cannot be
declared higher); caps that were not used, and usage that was missed because a cap was below yield times need, both
relative to all usage; real needs beyond the capacity of nodes, as a part of all capacity. `found s` is the running
time from a change of a need until its estimate is within 10 %; `found frac` is the part of the changes for which that
came; both are of needs that the policy did not know. `need off by` is a factor, the geometric mean over decisions and
running jobs: of the need that the policy saw to the real one, or the inverse.

Simulated: synthetic traces (Lublin-Feitelson) of 300 jobs on 64 nodes, with a penalty of 300 s. Live: 8 serial jobs of
20 to 60 s on 4 nodes of 0.4 cores, as processes, with a pass every 10 s and a CPU load of 0.9. The absolute error of
estimates is 0.01 of a node in simulations and 0.01 cores, 0.025 of a node, in live runs. The ways come in random order
within each seed. The file gets one line per run; runs that are in it are skipped. A folder `runs` beside it gets
journal and samples of each live run.
"""

from __future__ import annotations

import csv
import json
import lzma
import math
import os
import random
import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from cases import by_seed, check_disk, core_rates, missing, options
from guest_samples import Sample, guest_samples
from lab import print_machine
from live_run import live_run, measured_core_rate
from rows import add_rows, read_rows
from tables import markdown, measure_cells, ratio_cells

from testbed.bus.need_profile import WHOLE_PARTS, parts_of
from testbed.run.events import Decision
from testbed.run.journal import read_events
from testbed.scheduling.metrics import bounded_stretch
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.simulation.needs import FOUND_FRAC, NeedsModel
from testbed.scheduling.simulation.needs_figures import NeedsFigures
from testbed.scheduling.simulation.overheads import constant
from testbed.scheduling.simulation.simulate import simulate
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.load import cpu_load, scale_load
from testbed.scheduling.workload.misdeclared import misdeclared
from testbed.scheduling.workload.synthetic import synthetic_trace

POLICY = "GreedyPM */per/OPT=MIN/MINVT=600"
LIVE_POLICY = "GreedyPM */per/OPT=MIN"  # jobs of a minute would never be repacked with MINVT=600
SUFFIX = "/NEEDS=discovered"
WAYS = {"right": (1.0, ""), "wrong": (2.0, ""), "estimated": (2.0, SUFFIX), "right, estimated": (1.0, SUFFIX)}
LOADS = (0.5, 0.9)
WORLDS = {"simulated": LOADS, "live": (0.9,)}
PROFILES = ("1", "1,0.4@0.5")
NODES, JOBS, PENALTY_S = 64, 300, 300.0
LIVE_NODES, LIVE_CORES, LIVE_JOBS, LIVE_PERIOD_S = 4, 0.4, 8, 10
MEASURES = (
    "mean stretch", "max stretch", "too low frac", "too high frac", "unused frac", "short frac", "overcommitted frac",
    "found s", "found frac", "need off by",
)  # fmt: skip
WITHIN_S = 3.0  # two samples of a guest that are further apart may belong to two lives
SCENARIO = f"""
name = "needs"
policy = "EASY"
period_s = {LIVE_PERIOD_S}
[workload]
trace = "jobs.csv"
[programs]
iteration_s = 0.2
profile = "PROFILE"
""" + "".join(f'[[nodes]]\nname = "node-{node}"\ncpus = {LIVE_CORES}\nmemory_mib = 512\n' for node in range(LIVE_NODES))


def simulated_jobs(seed: int, load: float) -> list[Job]:
    """Return a synthetic trace at an offered load."""
    return scale_load(synthetic_trace(NODES, JOBS, seed), NODES, load)


def live_jobs(seed: int, load: float) -> list[Job]:
    """Return a short trace at a CPU load: run times are log-uniform, arrivals a Poisson process."""
    draw = random.Random(seed)  # noqa: S311  # the same jobs for the same seed
    found, now_s = [], 0.0
    for number in range(1, LIVE_JOBS + 1):
        run_time_s = round(math.exp(draw.uniform(math.log(20.0), math.log(60.0))), 3)
        found.append(Job(number, now_s, 1, draw.choice((0.25, 0.5, 1.0)), draw.choice((0.15, 0.2, 0.25)), run_time_s))
        now_s += draw.expovariate(1.0)
    by = cpu_load(found, LIVE_NODES) / load
    return [replace(job, submit_time_s=round(by * job.submit_time_s, 3)) for job in found]


def stretches(jobs: Sequence[Job], end_s: Sequence[float]) -> dict[str, float]:
    """Return the mean and the maximum bounded stretch, and the parts of the jobs whose need is declared wrong."""
    took_s = [end - job.submit_time_s for job, end in zip(jobs, end_s, strict=True)]
    found = bounded_stretch(took_s, [job.run_time_s for job in jobs])
    low, high = (
        sum(way * (job.cpu_need_frac - job.real_need_frac) > 0.0 for job in jobs) / len(jobs) for way in (-1, 1)
    )
    return {"mean stretch": float(found.mean()), "max stretch": float(found.max()),
            "too low frac": low, "too high frac": high}  # fmt: skip


Phases = tuple[tuple[float, float], ...]


def phases_of(profile: str) -> Phases:
    """Return the part of the work from which on a job has a part of its need, and this part."""
    return tuple((begins / WHOLE_PARTS, part / WHOLE_PARTS) for begins, part in parts_of(profile))


def simulated(seed: int, load: float, profile: str, way: str) -> dict[str, Any]:
    """Simulate one case."""
    factor, suffix = WAYS[way]
    jobs = misdeclared(simulated_jobs(seed, load), factor, seed)
    model = NeedsModel(phases_of(profile), seed=seed)
    run = simulate(jobs, NODES, parse(POLICY + suffix), constant(PENALTY_S), needs=model)
    found: dict[str, Any] = stretches(jobs, run.end_s.tolist())
    figures = run.needs or NeedsFigures()
    found["unused frac"] = figures.unused_cpu_s / figures.used_cpu_s
    found["short frac"] = figures.short_cpu_s / figures.used_cpu_s
    found["overcommitted frac"] = figures.overcommitted_s / (NODES * run.makespan_s)
    unknown = [seconds for seconds in figures.found_s if seconds > 0.0]
    if suffix and (unknown or figures.not_found):
        found["found frac"] = len(unknown) / (len(unknown) + figures.not_found)
        found |= {"found s": statistics.median(unknown)} if unknown else {}
    return found


def live(seed: int, load: float, profile: str, way: str, core_rate: float, folder: Path) -> dict[str, Any]:
    """Run one case; keep its journal and the samples of its guests in a folder."""
    factor, suffix = WAYS[way]
    jobs = misdeclared(live_jobs(seed, load), factor, seed)
    with live_run(SCENARIO.replace("PROFILE", profile), jobs, LIVE_POLICY + suffix, core_rate) as run:
        with (run / "jobs.csv").open(newline="") as file:
            ends = {int(row["job_id"]): float(row["end_time_s"]) for row in csv.DictReader(file)}
        results = json.loads((run / "summary.json").read_text())["results"]
        keep_run(run, folder / f"{seed}-{load:g}-{profile.replace('@', '-at-')}-{way.replace(', ', '-')}")
        return {
            **stretches(jobs, [ends[job.job_id] for job in jobs]),
            **live_needs(run, jobs, phases_of(profile), estimates=bool(suffix)),
            "right": results["right"], "jobs": len(jobs), "load_1_min": os.getloadavg()[0],
            "units_per_core_s": core_rate,
        }  # fmt: skip


def keep_run(run: Path, stem: Path) -> None:
    """Keep the journal of a run, and the points of its guests."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    points = [line for line in (run / "points.lp").read_bytes().splitlines(keepends=True) if line.startswith(b"guest,")]
    for name, content in (("events.jsonl", (run / "events.jsonl").read_bytes()), ("guests.lp", b"".join(points))):
        stem.with_name(f"{stem.name}.{name}.xz").write_bytes(lzma.compress(content))


def live_needs(run: Path, jobs: Sequence[Job], phases: Phases, *, estimates: bool) -> dict[str, float]:
    """Return the measures of one run that stretches do not have."""
    by_id = {job.job_id: job for job in jobs}
    decisions = [event for event in read_events(run / "events.jsonl") if isinstance(event, Decision)]
    caps = [caps_of(samples, by_id[job], phases, decisions) for job, samples in guest_samples(run).items()]
    used_s, unused_s, short_s = (sum(each[place] for each in caps) for place in range(3))
    found: dict[str, float] = {"unused frac": unused_s / used_s, "short frac": short_s / used_s}
    off, beyond_s = [], 0.0
    for event, later in zip(decisions, [*decisions[1:], None], strict=True):
        view, first = event.view, 0
        loads: dict[int, float] = {}
        for place, job_id in enumerate(view.job_id):
            node, first = event.decision.task_node[first], first + 1  # jobs of one task
            if node < 0:
                continue
            real = need_of(by_id[job_id], phases, view.virtual_time_s[place] / by_id[job_id].run_time_s)
            ratio = view.cpu_need_frac[place] / real
            off.append(max(ratio, 1.0 / ratio))
            loads[node] = loads.get(node, 0.0) + real
        if later is not None:
            beyond_s += sum(max(load - 1.0, 0.0) for load in loads.values()) * (later.t_s - event.t_s)
    found["need off by"] = statistics.geometric_mean(off)
    found["overcommitted frac"] = beyond_s / (LIVE_NODES * (decisions[-1].t_s - decisions[0].t_s))
    if estimates:
        searches = [
            each
            for job, some in guest_samples(run).items()
            for each in searches_of(some, by_id[job], phases, decisions)
        ]
        ended = [each for each in searches if each is not None]
        found |= {"found frac": len(ended) / len(searches)} if searches else {}
        found |= {"found s": statistics.median(ended)} if ended else {}
    return found


def need_of(job: Job, phases: Phases, done_frac: float) -> float:
    """Return the real need of a job that has done this part of its work, as a fraction of a node."""
    return job.real_need_frac * next(part for begins, part in reversed(phases) if begins <= max(done_frac, 0.0))


def done_fracs(samples: Sequence[Sample]) -> list[float]:
    """Return the part of its work that a job had done at each sample; the last one is right before its end."""
    units = [sample.values.get("units_done", 0.0) for sample in samples]
    return [each / max(*units, 1.0) for each in units]


def seen_needs(job: Job, decisions: Sequence[Decision]) -> tuple[list[float], list[float]]:
    """Return when decisions saw a need of a job, and which."""
    at_s, seen = [], []
    for event in decisions:
        if job.job_id in event.view.job_id:
            at_s.append(event.t_s)
            seen.append(event.view.cpu_need_frac[event.view.job_id.index(job.job_id)])
    return at_s, seen


def caps_of(
    samples: Sequence[Sample], job: Job, phases: Phases, decisions: Sequence[Decision]
) -> tuple[float, float, float]:  # fmt: skip
    """Return seconds of CPU time that a guest used, that its caps allowed beyond, and that it lacked at its yield.

    A cap is the yield times the need that the policy saw; the guest lacks what yield times real need is more.
    """
    at_s, seen = seen_needs(job, decisions)
    used_s = unused_s = short_s = 0.0
    for before, after, done in zip(samples, samples[1:], done_fracs(samples), strict=False):
        took_s = after.at_s - before.at_s
        own_s = after.values["cpu_s"] - before.values["cpu_s"]
        cap, last = before.values.get("cap_cores"), bisect_right(at_s, before.at_s) - 1
        if before.node != after.node or took_s > WITHIN_S or own_s < 0.0 or cap is None or last < 0:
            continue  # another life, or no cap was read
        used_s += own_s
        unused_s += max(cap * took_s - own_s, 0.0)
        short_s += max(cap * need_of(job, phases, done) / seen[last] * took_s - own_s, 0.0)
    return used_s, unused_s, short_s


def searches_of(
    samples: Sequence[Sample], job: Job, phases: Phases, decisions: Sequence[Decision]
) -> list[float | None]:  # fmt: skip
    """Return how long the job ran in each phase until the estimate was right, None if it never was.

    Phases whose need the policy knew at their begin are left out.
    """
    found: list[float | None] = []
    at_s, seen = seen_needs(job, decisions)
    fracs = done_fracs(samples)
    ends = [begins for begins, _ in phases[1:]] + [math.inf]
    for (begins, part), end in zip(phases, ends, strict=True):
        real, ran_s, right_s = job.real_need_frac * part * LIVE_CORES, 0.0, None
        first_s = next((each.at_s for each, done in zip(samples, fracs, strict=True) if begins <= done < end), None)
        last = -1 if first_s is None else bisect_right(at_s, first_s) - 1
        if last < 0 or abs(seen[last] * LIVE_CORES / real - 1.0) <= FOUND_FRAC:
            continue
        for before, after, done in zip(samples, samples[1:], fracs, strict=False):
            if not begins <= done < end:
                continue
            took_s = after.at_s - before.at_s
            ran_s += took_s if took_s <= WITHIN_S else 0.0
            if abs(after.values.get("need_cores", 0.0) / real - 1.0) <= FOUND_FRAC:
                right_s = ran_s
                break
        found.append(right_s)
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return medians over seeds with intervals, and the median ratio to right needs on the same seed."""
    lines = []
    for world, load, profile in product(WORLDS, LOADS, PROFILES):
        case = {"world": world, "load": load, "profile": profile}
        right = by_seed(rows, case | {"way": "right"})
        for way in WAYS:
            found = by_seed(rows, case | {"way": way})
            for measure in MEASURES:
                if cells := measure_cells(found, measure):
                    compared = way != "right" and measure.endswith("stretch")
                    ratio = ratio_cells(found, right, measure) if compared else ["", ""]
                    lines.append([world, f"{load:g}", profile, way, *cells, *ratio])
    head = (
        "world",
        "load",
        "profile",
        "needs",
        "n",
        "measure",
        "median",
        "95 % interval",
        "to right needs",
        "interval",
    )
    return markdown(head, lines)


def main() -> None:
    """Run the missing cases, and print the table."""
    parser = options(__doc__, "needs.jsonl")
    parser.add_argument("--seeds", type=int, default=0, help="number of simulated seeds")
    parser.add_argument("--live", type=int, default=0, help="number of live seeds")
    chosen = parser.parse_args()
    if chosen.table is None:
        check_disk()
        print_machine()
        cases = [
            {"world": world, "seed": chosen.first + number, "load": load, "profile": profile, "way": way}
            for world, seeds in (("simulated", chosen.seeds), ("live", chosen.live)) for number in range(seeds)
            for load in WORLDS[world] for profile in PROFILES for way in WAYS
        ]  # fmt: skip
        for case in missing(chosen.json, cases, "world", "seed"):
            row = case | measured(core_rates(chosen.json), chosen.json.parent / "runs", **case)
            add_rows(chosen.json, [row])
            print(f"{' '.join(map(str, case.values()))}: mean stretch {row['mean stretch']:.2f}", flush=True)
    print(table(read_rows(chosen.table or chosen.json)))


def measured(rates: Sequence[float], folder: Path, world: str, **case: Any) -> dict[str, Any]:
    """Simulate or run one case; `rates` are those of a core in earlier live runs, all the same."""
    if world == "simulated":
        return simulated(**case)
    alone = Job(1, 0.0, 1, 0.5, 0.2, 5.0)
    rate = rates[0] if rates else measured_core_rate(SCENARIO.replace("PROFILE", "1"), LIVE_POLICY, alone)
    return live(**case, core_rate=rate, folder=folder)


if __name__ == "__main__":
    main()
