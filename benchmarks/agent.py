"""Caps, their latency, and what the agents cost: `python benchmarks/agent.py [--repeats 300] [--window-s 10]`.

Event to cap applied: from the publication of a guest event until the caps of a whole decision were set and read back on
both nodes: event over the broker, policy, plan, commands over the broker, cap, answers. The floor is a bare command
round trip (ping) in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from functools import partial

import msgspec
from lab import lab, percentile, print_machine, print_table

from testbed.bus import topics
from testbed.bus.messages import (
    Calibrate,
    GuestEvent,
    GuestSpec,
    ListGuests,
    Ping,
    ProgramSpec,
    SetCaps,
    Start,
    Stop,
    encode,
)
from testbed.bus.protocol import Bus
from testbed.bus.telemetry import GuestSample
from testbed.control.cluster import Cluster, LiveJob, Phase
from testbed.control.fleet import Fleet
from testbed.control.planner import Target, Verb, plan
from testbed.policies.catalogue import parse
from testbed.policies.view import Event
from testbed.workload.jobs import Job


def spec(name: str, cores: float = 1.0) -> GuestSpec:
    program = ProgramSpec(name="eatcpu", work_units=1 << 50, units_per_iteration=200, seed=1)
    return GuestSpec(guest=name, run="bench", job=0, task=0, program=program, cpu_cores=cores, memory_mib=96)


async def cpu_of(fleet: Fleet, node: int) -> dict[str, tuple[float, float]]:
    """Guest to (monotonic s, CPU s), read at once."""
    result = await fleet.call(node, ListGuests(), 5)
    guests = msgspec.convert(result["guests"], list[GuestSample])
    return {sample.guest: (time.monotonic(), sample.cpu_s) for sample in guests}


async def measure_caps(fleet: Fleet, window_s: float) -> None:
    rows = []
    for cores in ([0.1], [0.25], [0.5], [0.75], [0.9], [0.1] * 4, [0.25] * 4, [0.1, 0.2, 0.3, 0.4]):
        names = [f"bench-{index}" for index in range(len(cores))]
        for name, cap in zip(names, cores, strict=True):
            await fleet.call(0, Start(spec=spec(name), cap_cores=cap), 30)
        await asyncio.sleep(1.0)
        before = await cpu_of(fleet, 0)
        await asyncio.sleep(window_s)
        after = await cpu_of(fleet, 0)
        used = [(after[n][1] - before[n][1]) / (after[n][0] - before[n][0]) for n in names]
        errors = [abs(u - cap) * 100 for u, cap in zip(used, cores, strict=True)]
        rows.append(
            (
                " ".join(f"{c:.2f}" for c in cores),
                " ".join(f"{u:.4f}" for u in used),
                sum(errors) / len(errors),
                max(errors),
            )
        )
        for name in names:
            await fleet.call(0, Stop(guest=name), 10)
    total = sum(row[2] for row in rows) / len(rows)
    print_table(
        f"Caps requested and achieved (cores) over {window_s:g} s; mean absolute error {total:.3f} percentage points",
        ("requested", "achieved", "mean |error| pp", "max |error| pp"),
        rows,
    )


def cluster_of_guests(fleet: Fleet, guests: int) -> Cluster:
    jobs = []
    for number in range(guests):
        job = Job(number, 0.0, 1, 1.0, 0.09, 1e9)
        live = LiveJob(job, (spec(f"bench-{number}"),), 1.0, units_done=[0])
        live.phase, live.running_on, live.was_started = Phase.RUNNING, (number % len(fleet.nodes),), True
        live.intended = Target(live.running_on, 0.5)
        live.yield_frac = 0.5
        jobs.append(live)
    return Cluster(jobs, len(fleet.nodes))


def node_of(live: LiveJob) -> int:
    """Return where a one-task job runs."""
    if live.running_on is None:
        raise RuntimeError(f"job {live.job_id} does not run")
    return live.running_on[0]


async def measure_latency(fleet: Fleet, bus: Bus, repeats: int) -> None:
    """One job comes and goes, so that each event changes the yields of the others."""
    guests = 6
    cluster = cluster_of_guests(fleet, guests)
    for live in cluster.jobs.values():
        await fleet.call(node_of(live), Start(spec=live.specs[0], cap_cores=0.5), 30)
    policy = parse("GreedyPM */per/OPT=MIN/MINVT=600")
    heard: asyncio.Queue[float] = asyncio.Queue()
    fleet.on_guest_event = lambda _node, _event: heard.put_nowait(time.perf_counter())
    topic = topics.node_topic("local", "node-0", "event")
    latencies, pings = [], []
    for number in range(repeats):
        event = GuestEvent(
            node="node-0", guest="bench-0", event="progress", mono_ns=time.monotonic_ns(), detail={"units": number}
        )
        begin_s = time.perf_counter()
        publication = asyncio.create_task(bus.publish(topic, encode(event)))
        await heard.get()
        cluster.jobs[0].phase = Phase.DONE if number % 2 else Phase.RUNNING
        view = cluster.view(float(number), float(number), 1.0, estimates=False)
        targets = cluster.targets(view, policy.decide(view, Event(changed=True)))
        actions = [a for a in plan([live.status() for live in cluster.active()], targets) if a.verb is Verb.CAP]
        caps: dict[int, dict[str, float]] = {}
        for action in actions:
            live = cluster.jobs[action.job_id]
            live.yield_frac = action.yield_frac
            caps.setdefault(action.nodes[0], {})[live.specs[0].guest] = action.yield_frac
        await asyncio.gather(*(fleet.call(node, SetCaps(caps=wanted), 10) for node, wanted in caps.items()))
        latencies.append((time.perf_counter() - begin_s) * 1000)
        await publication
        begin_s = time.perf_counter()
        await fleet.call(0, Ping(), 10)
        pings.append((time.perf_counter() - begin_s) * 1000)
    rows = [
        (name, percentile(values, 0.5), percentile(values, 0.99), max(values))
        for name, values in (("event to cap applied", latencies), ("floor: ping", pings))
    ]
    rows.append(("ratio", rows[0][1] / rows[1][1], rows[0][2] / rows[1][2], rows[0][3] / rows[1][3]))
    print_table(
        f"Latency over the broker, {guests} guests on {len(fleet.nodes)} nodes, {repeats} events",
        ("ms", "p50", "p99", "max"),
        rows,
    )
    for live in cluster.jobs.values():
        await fleet.call(node_of(live), Stop(guest=live.specs[0].guest), 10)


async def measure_cost(fleet: Fleet, window_s: float) -> None:
    rows = []
    for count, cap in ((0, 0.0), (1, 0.5), (4, 0.2), (8, 0.1)):
        for number in range(count):
            await fleet.call(0, Start(spec=spec(f"bench-{number}"), cap_cores=cap), 30)
        await asyncio.sleep(2)
        before = fleet.nodes[0].telemetry
        await asyncio.sleep(window_s)
        after = fleet.nodes[0].telemetry
        if before is None or after is None:
            raise RuntimeError("no telemetry")
        elapsed_s = (after.mono_ns - before.mono_ns) / 1e9
        rows.append((count, (after.agent_cpu_s - before.agent_cpu_s) / elapsed_s * 100, after.agent_rss_mib))
        for number in range(count):
            await fleet.call(0, Stop(guest=f"bench-{number}"), 10)
    print_table(f"An agent's own cost over {window_s:g} s", ("guests, all capped", "CPU % of a core", "RSS MiB"), rows)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--window-s", type=float, default=10.0)
    parser.add_argument("--broker", default="auto")
    options = parser.parse_args()
    if options.window_s < 2:
        parser.error("--window-s: expected at least 2, as telemetry comes once a second")
    async with lab(broker=options.broker) as (fleet, bus):
        print_machine()
        facts = fleet.facts(0)
        print(f"driver {facts.driver}: {', '.join(facts.capabilities)}; broker {options.broker}")
        rate = (await fleet.call(0, Calibrate(cpu_s=1.0), 30))["units_per_core_s"]
        print(f"{rate:,.0f} work units a second of a core")
        measures = (
            partial(measure_latency, bus=bus, repeats=options.repeats),
            partial(measure_cost, window_s=options.window_s),
            partial(measure_caps, window_s=options.window_s),
        )
        for measure in measures:
            await measure(fleet)


if __name__ == "__main__":
    asyncio.run(main())
