"""Generator of a new scenario file from a few answers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from testbed.bus.drivers import traits_of

DRIVERS = ("process", "libvirt", "docker")


@dataclass(frozen=True, slots=True)
class Answers:
    """The parameters of a new scenario: without `trace` a synthetic workload, else the first `jobs` of the trace."""

    name: str
    driver: str = "process"
    nodes: int = 2
    cpus: float = 1.0
    memory_mib: int = 1024
    trace: Path | None = None
    reading: str = ""
    jobs: int = 20
    policies: tuple[str, ...] = ("EASY", "GreedyPM */per/OPT=MIN/MINVT=600")
    time_scale: float = 60.0


def usable_drivers(exists: Callable[[str], bool] = os.path.exists) -> dict[str, str]:
    """Return the drivers that this machine can run, each with a reason; `process` is always included."""
    found = {"process": "needs nothing"}
    if exists("/usr/sbin/libvirtd") or exists("/usr/bin/virsh"):
        found["libvirt"] = "libvirt is installed" + (
            ", with KVM" if exists("/dev/kvm") else "; no KVM: emulated guests"
        )
    if exists("/var/run/docker.sock"):
        found["docker"] = "the socket of a Docker engine exists"
    return found


def scenario_text(answers: Answers) -> str:
    """Return the scenario file, with a comment on each choice."""
    lines = [
        "# A scenario: `testbed validate FILE` checks it, `testbed run FILE --dry-run` shows the plan,",
        "# `testbed run FILE` runs it. All keys: `testbed scenarios reference`.",
        f"name = {_text(answers.name)}",
        f"policy = [{', '.join(map(_text, answers.policies))}] # one run for each; `testbed policies` lists more",
        f"time_scale = {answers.time_scale:g} # trace seconds per wall second",
        "",
        *_workload(answers),
    ]
    if traits_of(answers.driver).hypervisor:
        lines += ["", "[box] # `testbed lab up FILE` creates the nodes on this machine, as root"]
    for number in range(answers.nodes):
        lines += [
            "", "[[nodes]]", f'name = "node-{number + 1}"', f"cpus = {answers.cpus:g}",
            f"memory_mib = {answers.memory_mib}", f"driver = {_text(answers.driver)}",
        ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _workload(answers: Answers) -> list[str]:
    if answers.trace is None:
        return [
            '[workload.lublin] # a synthetic trace; `trace = "FILE"` under [workload] replays a real one',
            f"jobs = {answers.jobs}", f"nodes = {answers.nodes}", "seed = 1", "load = 0.7",
        ]  # fmt: skip
    lines = ["[workload]", f"trace = {_text(str(answers.trace))}"]
    if answers.reading:
        lines.append(f"reading = {_text(answers.reading)}")
    return [
        *lines,
        "",
        "[workload.segment] # the whole trace without this table",
        "first_job = 0",
        f"jobs = {answers.jobs}",
    ]


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
