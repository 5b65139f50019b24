"""Checks of the machine: kernel, control groups, processors, memory, clock."""

from __future__ import annotations

import platform
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from testbed.lab.doctor.finding import Finding

_SYS_CPU = Path("/sys/devices/system/cpu")
_LEAST_KERNEL = (5, 4)  # older kernels also throttle groups that have not used up their quota
_STEAL_FRAC = 0.02
_PROBES = 9
_PROBE_S = 0.05
_UNSTEADY_FRAC = 0.1
_SWAPPED_MIB = 64


def kernel() -> Iterator[Finding]:
    """Report the kernel's version, and whether it is too old."""
    release = platform.release()
    numbers = tuple(int(part) for part in release.split("-")[0].split(".")[:2] if part.isdigit())
    if numbers < _LEAST_KERNEL:
        yield Finding(
            "kernel", "warning", f"{release}: quotas of control groups are too strict before 5.4",
            "install a newer kernel of the distribution",
        )  # fmt: skip
    else:
        yield Finding("kernel", "ok", release)


def control_groups() -> Iterator[Finding]:
    """Report whether CPU caps can be set, and by which mechanism."""
    v2 = Path("/sys/fs/cgroup/cgroup.controllers")
    v1 = [path for path in (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/cpu,cpuacct")) if path.is_dir()]
    if v2.exists() and "cpu" in v2.read_text(encoding="ascii").split():
        own = Path("/proc/self/cgroup").read_text(encoding="ascii").strip().rpartition(":")[2]
        group = Path("/sys/fs/cgroup") / own.lstrip("/")
        writable = _writable(group / "cgroup.procs")
        mend = "" if writable else "run the agent as its systemd unit does, with Delegate=cpu (ansible/roles/agent)"
        words = f"version 2, {'' if writable else 'not '}delegated to this user"
        yield Finding("control groups", "ok" if writable else "note", words, mend)
    elif v1:
        writable = _writable(v1[0] / "tasks")
        words = f"version 1, {'' if writable else 'not '}writable for this user"
        yield Finding(
            "control groups", "ok" if writable else "note", words, "" if writable else "run the agent as root"
        )
    else:
        yield Finding(
            "control groups", "warning", "no cpu controller: caps are enforced by stopping and continuing processes",
            "boot with systemd.unified_cgroup_hierarchy=1",
        )  # fmt: skip


def _writable(path: Path) -> bool:
    try:
        with path.open("ab"):
            return True
    except OSError:
        return False


def processors() -> Iterator[Finding]:
    """Report influences on the speed of cores (frequency governor, SMT, stolen time), and measure that speed."""
    cores = psutil.cpu_count(logical=False) or 0
    threads = psutil.cpu_count() or 1
    governors = sorted({_read(path) for path in _SYS_CPU.glob("cpu[0-9]*/cpufreq/scaling_governor")})
    if not governors:
        yield Finding("governor", "note", "the clock of the cores cannot be governed here")
    elif governors == ["performance"]:
        yield Finding("governor", "ok", "performance")
    else:
        yield Finding(
            "governor", "warning", f"{', '.join(governors)}: cores change their speed with the load",
            "cpupower frequency-set -g performance",
        )  # fmt: skip
    shares = _read(_SYS_CPU / "smt/active") == "1"
    yield Finding(
        "SMT", "note" if shares else "ok",
        f"{threads} threads on {cores} cores: guests on one core slow each other" if shares else f"{threads} CPUs, off",
        "echo off > /sys/devices/system/cpu/smt/control" if shares else "",
    )  # fmt: skip
    before, begin_s = psutil.cpu_times(), time.monotonic()
    rates = [_probe() for _ in range(_PROBES)]
    after, elapsed_s = psutil.cpu_times(), time.monotonic() - begin_s
    stolen_frac = (getattr(after, "steal", 0.0) - getattr(before, "steal", 0.0)) / (elapsed_s * threads)
    yield Finding(
        "steal", "warning" if stolen_frac > _STEAL_FRAC else "ok",
        f"{100 * stolen_frac:.1f} % of CPU time taken by the hypervisor of this machine",
        "ask its owner for cores of its own" if stolen_frac > _STEAL_FRAC else "", {"stolen_frac": stolen_frac},
    )  # fmt: skip
    spread_frac = (max(rates) - min(rates)) / max(rates)
    unsteady = spread_frac > _UNSTEADY_FRAC
    yield Finding(
        "core speed", "warning" if unsteady else "ok",
        f"differs by {100 * spread_frac:.0f} % within {elapsed_s:.1f} s",
        "end other load; fix the governor; use dedicated cores" if unsteady else "",
        {"spread_frac": spread_frac},
    )  # fmt: skip


def _probe() -> float:
    """Return rounds of a loop per second of this thread's CPU time."""
    begin_s, rounds, value = time.thread_time(), 0, 1
    while (used_s := time.thread_time() - begin_s) < _PROBE_S:
        for _ in range(500):
            value = (value * 1103515245 + 12345) & 0x7FFFFFFF
        rounds += 500
    return rounds / used_s


def memory() -> Iterator[Finding]:
    """Report the available memory, and whether memory was swapped out."""
    held, swap = psutil.virtual_memory(), psutil.swap_memory()
    values = {"total_mib": held.total >> 20, "available_mib": held.available >> 20}
    if swap.used >> 20 > _SWAPPED_MIB:
        yield Finding(
            "memory", "warning", f"{swap.used >> 20} MiB are swapped out: guests would wait for the disk",
            "swapoff -a, or give nodes less memory", values,
        )  # fmt: skip
    else:
        yield Finding("memory", "ok", f"{held.available >> 20} of {held.total >> 20} MiB available", values=values)


def clock() -> Iterator[Finding]:
    """Report whether the clock is synchronised."""
    for command, sign in (
        (["chronyc", "-n", "tracking"], "Leap status     : Normal"),
        (["timedatectl", "show", "-p", "NTPSynchronized"], "NTPSynchronized=yes"),
    ):
        if shutil.which(command[0]) is None:
            continue
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603  # fixed
        if sign in done.stdout:
            yield Finding("clock", "ok", f"synchronised ({command[0]})")
            return
    yield Finding(
        "clock", "warning", "no time synchronisation was found",
        "apt-get install chrony; or ansible-playbook site.yml --tags time",
    )  # fmt: skip


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
