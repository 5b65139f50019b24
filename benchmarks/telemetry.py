"""Cost of telemetry for the controller: `python benchmarks/telemetry.py [--nodes 200] [--seconds 20] [--json]`.

One process publishes one real record per second and node over a real Mosquitto, as agents do (QoS 1). Another process
is the controller's side (bus, Fleet, Tracker, run directory on disk). The benchmark measures the CPU seconds of all
threads of this other process. Jobs have one guest after the other on one node. All guests work, so that each record
becomes a point of the node, and for each guest a point and a point of its supersteps.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from lab import print_machine, print_table

from testbed.bus import topics
from testbed.bus.address import BrokerAddress
from testbed.bus.broker import broker
from testbed.bus.client import MqttBus
from testbed.bus.messages import GuestSpec, ProgramSpec, encode
from testbed.bus.telemetry import GuestSample, Supersteps, Telemetry
from testbed.control.cluster import Cluster, LiveJob
from testbed.control.recorder import Recorder
from testbed.control.tracker import Tracker
from testbed.lab.fleet import Node
from testbed.lab.guests import PreparedJob
from testbed.lab.leased import lease_lab
from testbed.measure.rundir import RunDirectory
from testbed.run.history import History
from testbed.run.job_history import JobHistory
from testbed.run.phases import Phase
from testbed.scenario.schema import DeadlinesTable
from testbed.scheduling.workload.jobs import Job

GOAL_FRAC = 0.25
WARM_UP_S = 3.0
LAB = "bench"
PROGRAM = ProgramSpec(name="eatcpu", work_units=1 << 50, units_per_iteration=200, seed=1)


def guest_name(node: int, task: int) -> str:
    return f"bench-j{node}-{task}"


def record(node: int, guests: int, second: int) -> Telemetry:
    steps = Supersteps(steps=40 * second, longest_s=0.0317, compute_s=0.6171 * second, comm_s=0.2013 * second)
    return Telemetry(
        node=f"node-{node}", mono_ns=time.monotonic_ns(), boot=f"{node:032x}", cpu_frac=0.7312, memory_used_mib=1321.5,
        disk_read_mib=812.25, disk_written_mib=1.5 * second, net_received_mib=0.25 * second, net_sent_mib=0.5 * second,
        agent_cpu_s=0.0123 * second, agent_rss_mib=51.2,
        guests=tuple(
            GuestSample(
                guest=guest_name(node, task), state="running", cap_cores=0.25, wanted_cores=0.25,
                cpu_s=0.2491 * second, rss_mib=96.5, read_mib=0.125, written_mib=0.25, units_done=8000 * second,
                units_mono_ns=time.monotonic_ns(), supersteps=steps,
            )
            for task in range(guests)
        ),
    )  # fmt: skip


async def publish(url: str, nodes: int, guests: int, seconds: float) -> None:
    """Publish one record per second and node, evenly spread."""
    loop = asyncio.get_running_loop()
    async with MqttBus(BrokerAddress.parse(url), "bench-publisher") as bus:
        begin_s = loop.time()
        flying: set[asyncio.Task[None]] = set()
        for number in range(int(nodes * seconds)):
            await asyncio.sleep(begin_s + number / nodes - loop.time())
            second, node = divmod(number, nodes)
            topic = topics.node_topic(LAB, f"node-{node}", "telemetry")
            task = asyncio.create_task(bus.publish(topic, encode(record(node, guests, second + 1))))
            flying.add(task)
            task.add_done_callback(flying.discard)
        await asyncio.gather(*flying)


def cluster_of(nodes: int, guests: int, history: History) -> Cluster:
    jobs = []
    for node in range(nodes):
        specs = tuple(
            GuestSpec(guest=guest_name(node, task), run="bench", job=node, task=task, program=PROGRAM, cpu_cores=0.25,
                      memory_mib=96)
            for task in range(guests)
        )  # fmt: skip
        state = history.jobs[node] = JobHistory(
            job=node,
            tasks=guests,
            phase=Phase.RUNNING,
            running_on=(node,) * guests,
            was_started=True,
            progressed=set(range(guests)),
        )
        jobs.append(LiveJob.of(PreparedJob(Job(node, 0.0, guests, 0.25, 0.1, 1e9), specs, 1.0), state))
    return Cluster(jobs, history)


async def control(url: str, nodes: int, guests: int, seconds: float, folder: Path) -> dict[str, float]:
    """Receive records for some seconds; return their cost."""
    loop = asyncio.get_running_loop()
    directory = RunDirectory(folder / "run", {"run": "bench", "lab": LAB, "policy": "none"})
    directory.open()
    begin_s = loop.time()
    recorder = Recorder(directory, lambda: loop.time() - begin_s, lambda: loop.time() - begin_s, time.time_ns())
    tracker = Tracker(cluster_of(nodes, guests, recorder.history), recorder)
    records = 0

    def take(node: Node, sample: Telemetry, taken_ns: int) -> None:
        nonlocal records
        records += 1
        tracker.telemetry(node, sample, taken_ns)

    names = [f"node-{node}" for node in range(nodes)]
    async with (
        MqttBus(BrokerAddress.parse(url), "bench-controller") as bus,
        lease_lab(bus, LAB, names, "bench", deadlines=DeadlinesTable()) as leased,
    ):
        leased.fleet.on_telemetry = take
        await leased.fleet.open()
        print("ready", flush=True)
        await asyncio.sleep(WARM_UP_S)
        before, cpu_s, wall_s = records, time.process_time(), time.monotonic()
        await asyncio.sleep(seconds)
        cpu_s, wall_s, taken = time.process_time() - cpu_s, time.monotonic() - wall_s, records - before
    recorder.close()
    lines = sum(path.read_bytes().count(b"\n") for path in directory.path.glob("points*.lp"))
    return {
        "nodes": nodes,
        "guests": nodes * guests,
        "wall_s": wall_s,
        "records_per_s": taken / wall_s,
        "points_per_s": taken / wall_s * lines / max(records, 1),
        "cpu_s": cpu_s,
        "cpu_frac": cpu_s / wall_s,
        "cpu_us_per_record": cpu_s / max(taken, 1) * 1e6,
    }


def child(role: str, url: str, options: argparse.Namespace, *more: str) -> subprocess.Popen[str]:
    argv = [sys.executable, __file__, "--role", role, "--nodes", str(options.nodes), "--guests", str(options.guests)]
    environment = {**os.environ, "BENCH_BROKER": url}  # its password must not be in a command line
    return subprocess.Popen([*argv, *more], stdout=subprocess.PIPE, text=True, env=environment)


async def measure(options: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="dfrs-bench-") as folder:
        async with broker("mosquitto") as running:
            url = running.address.url
            children = [child("control", url, options, "--seconds", str(options.seconds), "--folder", folder)]
            try:
                printed = children[0].stdout
                if printed is None or await asyncio.to_thread(printed.readline) != "ready\n":
                    raise SystemExit("the controller's process did not start")
                lasts_s = options.seconds + WARM_UP_S + 2
                children.append(child("publish", url, options, "--seconds", str(lasts_s)))
                result: dict[str, float] = json.loads(await asyncio.to_thread(printed.readline))
            finally:
                for process in children:
                    process.terminate()
                    process.wait()
                    if process.stdout is not None:
                        process.stdout.close()
    if result["records_per_s"] < 0.98 * options.nodes:
        raise SystemExit(f"only {result['records_per_s']:.1f} of {options.nodes} records per second: not measured")
    return {**result, "goal_frac": GOAL_FRAC, "load_1min": os.getloadavg()[0]}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--guests", type=int, default=4, help="guests of each node")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--role", choices=("control", "publish"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    url = os.environ.get("BENCH_BROKER", "")
    if options.role == "publish":
        asyncio.run(publish(url, options.nodes, options.guests, options.seconds))
        return
    if options.role == "control":
        result = asyncio.run(control(url, options.nodes, options.guests, options.seconds, options.folder))
        print(json.dumps(result))
        return
    result = asyncio.run(measure(options))
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print_machine()
    print(f"load {result['load_1min']:.1f} processes in the last minute")
    print_table(
        f"The controller's share of a core for telemetry, {options.seconds:g} s; goal {GOAL_FRAC:.0%}",
        ("nodes", "guests", "records/s", "points/s", "CPU s", "CPU % of a core", "µs a record"),
        [
            (
                options.nodes,
                options.nodes * options.guests,
                result["records_per_s"],
                result["points_per_s"],
                result["cpu_s"],
                result["cpu_frac"] * 100,
                result["cpu_us_per_record"],
            )
        ],
    )


if __name__ == "__main__":
    main()
