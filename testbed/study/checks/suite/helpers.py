"""Helpers of several checks: waiting for a condition, CPU use from samples, files and processes of this machine."""

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
CAP_SLACK_CORES = 0.03  # a quota's slices, and the emulator's own threads
CAP_SLACK_FRAC = 0.08
LEAST_FRAC = 0.7  # of its cap, that a guest gets on a machine with idle time


def until(condition: Callable[[], T], within_s: float, every_s: float = 0.02) -> T:
    """Return what `condition` returns once that is true; after `within_s` whatever it returns then."""
    end_s = time.monotonic() + within_s
    while not (found := condition()) and time.monotonic() < end_s:
        time.sleep(every_s)
    return found


def used_cores(watched: Watched, guest: str, begin_s: float = 0.0) -> float:
    """Return the mean number of cores that a guest used from `begin_s` to the end of a watch."""
    first = next(index for index, t_s in enumerate(watched.t_s) if t_s >= begin_s)
    return (watched.cpu_s[guest][-1] - watched.cpu_s[guest][first]) / (watched.t_s[-1] - watched.t_s[first])


def most_cores(cap_cores: float) -> float:
    """Return what a guest may use at most under a cap."""
    return cap_cores + max(CAP_SLACK_CORES, CAP_SLACK_FRAC * cap_cores)


def is_local(lab: LabUnderTest, node: NodeUnderTest) -> bool:
    """Whether a node's files and processes can be inspected from here."""
    folder = lab.image_folder(node)
    return folder is not None and folder.is_dir()


def local_images(lab: LabUnderTest, node: NodeUnderTest) -> Path:
    """Return the folder of a node's saved guests; the check is skipped where that is not on this machine."""
    folder = lab.image_folder(node)
    if folder is None or not folder.is_dir():
        pytest.skip(f"the images of {node.name} are on another machine: its files cannot be looked at from here")
    return folder


def files_of(folder: Path, guests: Sequence[str]) -> list[Path]:
    """Return the files of a folder that belong to guests, by the beginning of their names."""
    return [path for path in sorted(folder.iterdir()) if path.name.startswith(tuple(f"{name}-" for name in guests))]


def processes_of(lab: LabUnderTest, node: NodeUnderTest, guest: str) -> list[psutil.Process]:
    """Return the processes on this machine that are a guest of a node of this very lab.

    A virtual machine has its guest's name in its command line. The processes below the node's agent, whose command line
    has the lab's folder, are guests, too: no check has others on a node meanwhile.
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
    """Return those that have not ended; a number that another process has got meanwhile is not taken for it."""
    return [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def check_use(used: float, cap_cores: float, idle_cores: float, doubt: Callable[[str], None]) -> None:
    """Fail if a guest that would use all it can get used more than its cap, or much less.

    Less is no fault of the hypervisor where the machine had no idle time to give: then it is a doubt.
    """
    if used > most_cores(cap_cores):
        pytest.fail(
            f"{used:.3f} cores used under a cap of {cap_cores:.3f}: expected {most_cores(cap_cores):.3f} at most"
        )
    if used < LEAST_FRAC * cap_cores:
        told = f"{used:.3f} cores used under a cap of {cap_cores:.3f}: expected {LEAST_FRAC * cap_cores:.3f} at least"
        if idle_cores >= cap_cores - used:
            pytest.fail(f"{told}; {idle_cores:.2f} cores of the machine were idle")
        doubt(f"{told}; the machine was busy with other things")
