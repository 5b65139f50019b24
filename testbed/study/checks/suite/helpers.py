"""Helpers of several checks: polling for a condition, CPU use from samples, files and processes of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from testbed.bus.drivers import traits_in
from testbed.lab.outcomes import Watched
from testbed.study.checks.lab import LabUnderTest, NodeUnderTest

T = TypeVar("T")
CAP_SLACK_CORES = 0.03  # use beyond a cap by the slices of a quota and by the emulator's own threads
CAP_SLACK_FRAC = 0.08
LEAST_FRAC = 0.7  # fraction of its cap that a guest gets at least on a machine with idle CPU time


def until(condition: Callable[[], T], within_s: float, every_s: float = 0.02) -> T:
    """Poll `condition` until it is true or `within_s` seconds have passed; return its last value."""
    end_s = time.monotonic() + within_s
    while not (found := condition()) and time.monotonic() < end_s:
        time.sleep(every_s)
    return found


def used_cores(watched: Watched, guest: str, begin_s: float = 0.0) -> float:
    """Return the mean number of cores that a guest used from second `begin_s` to the end of a watch."""
    first = next(index for index, t_s in enumerate(watched.t_s) if t_s >= begin_s)
    return (watched.cpu_s[guest][-1] - watched.cpu_s[guest][first]) / (watched.t_s[-1] - watched.t_s[first])


def most_cores(cap_cores: float) -> float:
    """Return the number of cores that a guest may use at most under a cap."""
    return cap_cores + max(CAP_SLACK_CORES, CAP_SLACK_FRAC * cap_cores)


def is_local(lab: LabUnderTest, node: NodeUnderTest) -> bool:
    """Return whether a node's files and processes are on this machine."""
    folder = lab.image_folder(node)
    return folder is not None and folder.is_dir()


def local_images(lab: LabUnderTest, node: NodeUnderTest) -> Path:
    """Return the folder of a node's images; skip the check if that folder is on another machine."""
    folder = lab.image_folder(node)
    if folder is None or not folder.is_dir():
        pytest.skip(f"the images of {node.name} are on another machine: this check has to read them")
    return folder


def files_of(folder: Path, guests: Sequence[str]) -> list[Path]:
    """Return the files of a folder whose names begin with the name of one of these guests."""
    return [path for path in sorted(folder.iterdir()) if path.name.startswith(tuple(f"{name}-" for name in guests))]


def processes_of(lab: LabUnderTest, node: NodeUnderTest, guest: str) -> list[psutil.Process]:
    """Return the processes of this machine that run a guest of a node of this lab, and of no other lab.

    The command line of a virtual machine has the name of its guest. Guests that are processes are the descendants of
    the node's agent, whose command line has the folder of the node's images. All descendants are taken, because no
    check has other guests on the node at that time.
    """
    folder = str(local_images(lab, node))
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if any(word.startswith(f"guest={guest},") for word in words):
                found.append(process)
            elif traits_in(node.facts).guests_are_children and "node_agent" in words and folder in words:
                found += process.children(recursive=True)
        except psutil.Error:  # the process has just ended
            continue
    return found


def still_there(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that have not ended; a process with a reused PID does not count."""
    return [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def check_use(used: float, cap_cores: float, idle_cores: float, doubt: Callable[[str], None]) -> None:
    """Fail if a guest with unlimited CPU demand used more than its cap, or much less.

    A shortfall fails the check only if the machine had enough idle cores. On a busy machine it is a doubt, because
    the hypervisor may not be the cause.
    """
    if used > most_cores(cap_cores):
        pytest.fail(
            f"{used:.3f} cores used under a cap of {cap_cores:.3f}: expected {most_cores(cap_cores):.3f} at most"
        )
    if used < LEAST_FRAC * cap_cores:
        told = f"{used:.3f} cores used under a cap of {cap_cores:.3f}: expected {LEAST_FRAC * cap_cores:.3f} at least"
        if idle_cores >= cap_cores - used:
            pytest.fail(f"{told}; {idle_cores:.2f} cores of the machine were idle")
        doubt(f"{told}; the machine had too few idle cores")
