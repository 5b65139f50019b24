"""One controller commands agents on two hosts over TLS: each in a separate network namespace, joined by a bridge."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w
from support.deadlines import PATIENT
from support.live import HANG_S
from support.secure.doors import LAB, Doors, open_doors

ROOT = Path(__file__).resolve().parents[2]
JOBS = 4
CPUS = 0.4  # of each node; leaves CPU time to the tests beside it
HEAD, NODES = "10.99.77.1", {"node-a": "10.99.77.11", "node-b": "10.99.77.12"}

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@contextlib.contextmanager
def network() -> Iterator[dict[str, tuple[str, ...]]]:
    """Make a namespace for the head with a bridge, and one per node; yields the prefix of commands in each."""
    spaces = {name: f"dfrs-{os.getpid()}-{name}" for name in ("head", *NODES)}
    with contextlib.ExitStack() as stack:
        for space in spaces.values():
            ip("netns", "add", space)
            stack.callback(ip, "netns", "delete", space)
            ip("-n", space, "link", "set", "lo", "up")
        ip("-n", spaces["head"], "link", "add", "br0", "type", "bridge")
        ip("-n", spaces["head"], "address", "add", f"{HEAD}/24", "dev", "br0")
        ip("-n", spaces["head"], "link", "set", "br0", "up")
        for number, (name, address) in enumerate(NODES.items()):
            ip(
                "-n",
                spaces["head"],
                "link",
                "add",
                f"port{number}",
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                spaces[name],
            )
            ip("-n", spaces["head"], "link", "set", f"port{number}", "master", "br0", "up")
            ip("-n", spaces[name], "address", "add", f"{address}/24", "dev", "eth0")
            ip("-n", spaces[name], "link", "set", "eth0", "up")
        yield {name: ("nsenter", f"--net=/run/netns/{space}") for name, space in spaces.items()}


@contextlib.contextmanager
def agent(name: str, doors: Doors, inside: tuple[str, ...], folder: Path) -> Iterator[None]:
    with (folder / f"{name}.log").open("wb") as log:
        child = subprocess.Popen(
            [
                *inside, sys.executable, "-m", "node_agent", "--lab", LAB, "--node", name, "--address", NODES[name],
                "--broker", f"mqtts://{HEAD}:{doors.agent_port}", "--tls-dir", doors.authority.folder / "nodes" / name,
                "--cpus", str(CPUS), "--memory-mib", "640", "--state-dir", folder / name,
            ],
            stderr=log,
        )  # fmt: skip
    try:
        yield
    finally:
        child.terminate()
        child.wait(HANG_S)


def test_jobs_of_the_quickstart_scenario_run_across_them(tmp_path: Path) -> None:
    with (
        network() as inside,
        open_doors(tmp_path, HEAD, NODES, inside["head"]) as doors,
        contextlib.ExitStack() as stack,
    ):
        for name in NODES:
            stack.enter_context(agent(name, doors, inside[name], tmp_path))
        scenario = tomllib.loads((ROOT / "scenarios/quickstart.toml").read_text())
        scenario["lab"], scenario["time_scale"] = LAB, 200
        scenario["workload"]["segment"]["jobs"] = JOBS
        scenario["deadlines"] = PATIENT
        scenario["broker"] = {
            "address": f"mqtts://{HEAD}:{doors.controller_port}",
            "tls_dir": str(doors.authority.folder / "controllers/alice"),
        }
        scenario["nodes"] = [{**node, "cpus": CPUS, "spawn": False} for node in scenario["nodes"]]
        (tmp_path / "across.toml").write_text(tomli_w.dumps(scenario))
        done = subprocess.run(
            [*inside["head"], sys.executable, "-m", "testbed", "run", "across.toml"], cwd=tmp_path, capture_output=True,
            text=True, check=False, timeout=HANG_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:] + doors.log.read_text()[-2000:]
        (run,) = (tmp_path / "runs").iterdir()
        jobs = list(csv.DictReader((run / "jobs.csv").read_text().splitlines()))
        assert len(jobs) == JOBS
        assert max(int(job["tasks"]) for job in jobs) > 1, "ranks of one job on both hosts"
        facts = json.loads((run / "manifest.json").read_text())["nodes"]
        assert {name: fact["address"] for name, fact in facts.items()} == NODES
