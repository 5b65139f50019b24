"""Cost of faults: `python benchmarks/faults.py [--guests] [--case NAME ...] [--repeats 1] [--out FILE.json]`.

Each case runs twelve jobs of the quickstart's trace on two nodes of real processes, with its own Mosquitto and agents.
With `--guests`, as root, it runs the jobs of scenarios/kvm-two-nodes.toml in a lab that is made for each case. A fault
happens `--after-s` seconds into the replay. The broker is killed, and started again after a while; node-b is cut off (a
relay between its agent and the broker forwards nothing); its agent is stopped (SIGSTOP), or killed and started again.
The table has the number of jobs that ran at that moment, the number that were done in the end, and the reasons of the
others. The exit code is 1 if no job ran at that moment. Needs Mosquitto.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any

from fault_worlds import ProcessWorld, World, guest_world
from lab import print_machine, print_table

from testbed.host.interpreter import module_argv

SAY_EVERY_S = 0.1
_UNKEPT = shutil.ignore_patterns("images*", "password*", "*.url", "*.sock")

Fault = Callable[[World], Awaitable[None]]


async def nothing(_world: World) -> None:
    """The control."""


CASES: dict[str, tuple[str, Fault, str]] = {
    "none": ("nothing", nothing, "fail"),
    "broker-10": ("broker killed, back after 10 s", lambda world: world.broker_away(10), "fail"),
    "broker-60": ("broker killed, back after 60 s", lambda world: world.broker_away(60), "fail"),
    "stop-30": ("agent stopped for 30 s", lambda world: world.agent_stopped(30), "fail"),
    "cut-30": ("node cut off for 30 s", lambda world: world.node_cut(30), "fail"),
    "kill-3": ("agent killed, back after 3 s", lambda world: world.agent_killed(3), "fail"),
    "kill-3-restart": ("the same, jobs start again", lambda world: world.agent_killed(3), "restart"),
}


def entries(journal: Path) -> list[dict[str, Any]]:
    if not journal.exists():
        return []
    lines = journal.read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines]


def running(journal: list[dict[str, Any]]) -> int:
    """Return how many jobs run at the end of a journal; paused jobs do not count."""
    states = {entry["job"]: entry["state"] for entry in journal if entry["kind"] == "job"}
    return sum(state in {"running", "resumed", "moving"} for state in states.values())


def the_run(folder: Path) -> Path:
    (path,) = folder.glob("runs/*")
    return path


def kinds(folder: Path) -> set[str]:
    return {entry["kind"] for journal in folder.glob("runs/*/events.jsonl") for entry in entries(journal)}


def run_case(name: str, after_s: float, folder: Path, *, guests: bool) -> dict[str, Any]:
    lab = f"faults{os.getpid()}"
    if not guests:
        return asyncio.run(_run_case(name, after_s, folder, ProcessWorld(folder, lab)))
    with guest_world(folder, lab) as made:
        return asyncio.run(_run_case(name, after_s, folder, made))


async def _run_case(name: str, after_s: float, folder: Path, lab: AbstractAsyncContextManager[World]) -> dict[str, Any]:
    _, fault, on_node_loss = CASES[name]
    async with lab as world:
        path = folder / "faults.toml"
        path.write_text(world.scenario(on_node_loss))
        with (folder / "run.log").open("wb") as log:
            run = await asyncio.create_subprocess_exec(
                *module_argv("testbed", "run", str(path), "--out", str(folder / "runs")), stdout=log, stderr=log
            )
        try:
            while run.returncode is None and "replay" not in kinds(folder):
                with suppress(TimeoutError):
                    await asyncio.wait_for(run.wait(), SAY_EVERY_S)
            disturbing = asyncio.ensure_future(_later(after_s, fault, world, folder))
            code = await run.wait()
            disturbed = await disturbing
        finally:
            if run.returncode is None:  # this program was interrupted
                run.terminate()
                await run.wait()
    run_path = the_run(folder)
    summary = json.loads((run_path / "summary.json").read_text())
    nodes = [
        f"{entry['node']} {entry.get('standing', entry['online'])}: {entry['reason']}"
        for entry in entries(run_path / "events.jsonl")
        if entry["kind"] == "node"
    ]
    return {
        "case": name,
        "disturbed_jobs": disturbed,
        "done": summary["done"],
        "failed": summary["failed"],
        "exit_code": code,
        "nodes": nodes,
        "wall_s": entries(run_path / "events.jsonl")[-1].get("t_s"),
    }


async def _later(seconds: float, fault: Fault, world: World, folder: Path) -> int:
    """Cause the fault after a while; return how many jobs ran at that moment."""
    await asyncio.sleep(seconds)
    disturbed = running(entries(the_run(folder) / "events.jsonl"))
    await fault(world)
    return disturbed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--case", action="append", choices=list(CASES), help="one case; all of them by default")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--after-s", type=float, default=17.0, help="time of the fault in the replay, in wall seconds")
    parser.add_argument("--guests", action="store_true", help="virtual machines in place of processes; as root")
    parser.add_argument("--out", type=Path, help="results as JSON")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep run directories and logs of agents there")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM also removes the lab, as Ctrl-C does
    print_machine()
    results = []
    for name in options.case or CASES:
        for count in range(options.repeats):
            with tempfile.TemporaryDirectory(prefix="dfrs-faults-") as folder:
                try:
                    results.append(run_case(name, options.after_s, Path(folder), guests=options.guests))
                finally:  # the logs are needed most when the run was refused
                    if options.keep:
                        shutil.copytree(folder, options.keep / f"{name}-{count}", ignore=_UNKEPT)
            print(json.dumps(results[-1]), flush=True)
            if options.out:
                options.out.write_text(json.dumps(results, indent=1) + "\n")
    print_table(
        f"Twelve jobs, two nodes of {'virtual machines' if options.guests else 'processes'}",
        ("fault", "jobs that ran then", "done", "failed", "reasons"),
        [
            (
                CASES[str(one["case"])][0],
                one["disturbed_jobs"],
                one["done"],
                len(one["failed"]),
                "; ".join(sorted(set(one["failed"].values()))),
            )
            for one in results
        ],
    )
    idle = [one["case"] for one in results if not one["disturbed_jobs"]]
    if idle:
        parser.exit(1, f"no job ran at the moment of {', '.join(idle)}: these show nothing; choose another --after-s\n")


if __name__ == "__main__":
    main()
