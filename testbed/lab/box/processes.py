"""Starts, identifies, finds and ends processes that outlive the command that starts them.

A process id may be reused, so it is stored with the process's start time. All processes have a mark in their
environment, by which they are found even if the command was killed before it recorded their ids.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from testbed.errors import RunError
from testbed.host.process_identity import start_ticks, stat_fields
from testbed.lab.box.spec import RUN_ROOT

MARK = "DFRS_TESTBED_BOX"
LIBVIRT_SOCKETS = "/run/libvirt"  # in the mount namespace of a node, a bind mount of a folder of ours
_PROC = Path("/proc")
_LOOK_EVERY_S = 0.02
_KILLED_WITHIN_S = 60.0  # SIGKILL does not end a thread that waits for a slow disk before its write is done


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process: its id, and its start in clock ticks since the boot of the machine."""

    pid: int
    start_ticks: int


def mark(lab: str, node: str, role: str) -> str:
    """Return the mark of a process; `node` is empty for a process of the whole lab."""
    return f"{lab}/{node}/{role}"


def identify(pid: int) -> ProcessId | None:
    """Return the process that currently has this id, or None; see `start_ticks`."""
    ticks = start_ticks(pid)
    return None if ticks is None else ProcessId(pid, ticks)


def alive(process: ProcessId | None) -> bool:
    """Whether this process, not a later one with its id, runs."""
    return process is not None and identify(process.pid) == process


def spawn(argv: Sequence[str], marked_as: str, log: Path, stdin: str = "") -> ProcessId:
    """Start a process in a session of its own, away from the terminal; raises `RunError`.

    `stdin` is its input. The process inherits the caller's environment, with the mark added.
    """
    with log.open("ab") as sink:
        try:
            child = subprocess.Popen(  # noqa: S603  # arguments are a list, built from checked names
                argv, stdin=subprocess.PIPE, stdout=sink, stderr=sink, cwd="/", start_new_session=True,
                env={**os.environ, MARK: marked_as},
            )  # fmt: skip
        except OSError as error:
            raise RunError(f"{argv[0]}: cannot be started: {error.strerror}") from error
    if child.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(stdin.encode())
            child.stdin.flush()
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
    process = identify(child.pid)
    child.returncode = 0  # so that Popen does not wait for the process, which shall outlive this one
    if process is None:
        raise RunError(f"{argv[0]}: ended at once{last_line(log)}")
    return process


def last_line(log: Path) -> str:
    """Return the last line of a log, formatted as the end of an error message, or an empty string."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return f": {lines[-1]}" if lines else ""


def marked(lab: str, node: str | None = None, role: str | None = None) -> list[ProcessId]:
    """Return the processes of a lab, of one of its nodes, or of one role there; None is any."""
    wanted = [lab, node, role]
    found = []
    for pid in _pids():
        with contextlib.suppress(OSError):
            variables = _environment(pid).decode(errors="replace").split("\0")
            marks = [text.removeprefix(f"{MARK}=").split("/") for text in variables if text.startswith(f"{MARK}=")]
            if any(_fits(have, wanted) for have in marks) and pid != os.getpid():
                found.append(identify(pid))
    return [process for process in found if process is not None]


def _fits(have: Sequence[str], wanted: Sequence[str | None]) -> bool:
    return len(have) == len(wanted) and all(w in {None, h} for h, w in zip(have, wanted, strict=True))


def with_housemates(processes: Iterable[ProcessId]) -> list[ProcessId]:
    """Return the given processes, and all other processes in the mount namespaces of nodes that they run in.

    Hypervisors start guests with another environment, without the mark, but guests stay in the mount namespace of their
    node. Brokers and other processes of a lab are in the machine's own mount namespace, which is left out, as it has
    all processes of the machine.
    """
    found = set(processes)
    private = {_mount_namespace(str(process.pid)) for process in found if _in_furnished(process.pid)}
    private -= {_mount_namespace("self"), None}
    if private:
        for pid in _pids():
            process = identify(pid) if _mount_namespace(str(pid)) in private else None
            if process is not None:
                found.add(process)
    return sorted(found, key=lambda process: process.pid)


def end(processes: Sequence[ProcessId], grace_s: float) -> None:
    """End processes by SIGTERM, after `grace_s` by SIGKILL; raises `RunError` if a process still runs after that."""
    left = [process for process in processes if alive(process)]
    for number, within_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, _KILLED_WITHIN_S)):
        if number == signal.SIGTERM and grace_s <= 0:
            continue
        for process in left:
            if alive(process):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)
        wait_until(partial(_none_alive, left), within_s)
        left = [process for process in left if alive(process)]
        if not left:
            return
    raise RunError(f"even SIGKILL does not end {', '.join(_waits_for(process.pid) for process in left)}")


def kill_all(find: Callable[[], Sequence[ProcessId]]) -> int:
    """Kill the processes that `find` returns until it returns none, as they may start others; return their number."""
    deadline_s = time.monotonic() + _KILLED_WITHIN_S
    killed = 0
    while found := find():
        if time.monotonic() > deadline_s:
            raise RunError(f"processes {', '.join(str(process.pid) for process in found)}: new ones are still started")
        end(found, grace_s=0)
        killed += len(found)
    return killed


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Poll until the condition holds; return False if it does not hold within `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_LOOK_EVERY_S)  # polled, as not all kinds of conditions have an event
    return True


def _none_alive(processes: Sequence[ProcessId]) -> bool:
    return not any(alive(process) for process in processes)


def _pids() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()]


def _threads(pid: int | str) -> list[Path]:
    """Return the /proc folders of a process and of its threads, as other threads may outlive the first."""
    try:
        others = [path for path in (_PROC / str(pid) / "task").iterdir() if path.name != str(pid)]
    except OSError:
        others = []
    return [_PROC / str(pid), *others]


def _environment(pid: int) -> bytes:
    for folder in _threads(pid):
        with contextlib.suppress(OSError):
            content = (folder / "environ").read_bytes()
            if content:
                return content
    return b""


def _mount_namespace(pid: str) -> Path | None:
    for folder in _threads(pid):
        with contextlib.suppress(OSError):
            return (folder / "ns" / "mnt").readlink()
    return None


def _in_furnished(pid: int) -> bool:
    """Whether a process runs in a node's mount namespace, in which libvirt's socket folder is a folder of ours."""
    for folder in _threads(pid):
        with contextlib.suppress(OSError):
            rows = [line.split() for line in (folder / "mountinfo").read_text(encoding="utf-8").splitlines()]
            return any(point == LIBVIRT_SOCKETS and f"{RUN_ROOT.name}/" in root for _, _, _, root, point, *_ in rows)
    return False


def _waits_for(pid: int) -> str:
    """Return a process with its threads' wait channels in the kernel, for the message that it does not end."""
    waits = set()
    for folder in _threads(pid):
        if (stat_fields(folder) or "Z")[0] != "Z":
            with contextlib.suppress(OSError):
                waits.add((folder / "wchan").read_text(encoding="ascii"))
    waits -= {"", "0"}
    return f"process {pid}{' (in ' if waits else ''}{', '.join(sorted(waits))}{')' if waits else ''}"
