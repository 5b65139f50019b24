"""Run as a script, `fence_watch.py FOLDER URI VIRSH`: destroys virtual machines whose fences have fallen, by virsh.

Virtual machines outlive an agent that is killed, stopped or stuck, and so does this process. It reads the fences that
the agent keeps in its state folder. There is one process per folder, which holds a lock on a file there. It ends on
SIGTERM, which its agent sends at an orderly end, or by itself when no agent lives and no fence is left.

Imports the standard library alone: it is started without site packages, to be small and quick.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import time
import traceback
import xml.etree.ElementTree as ET
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[3]))  # of this package

from node_agent.fences import LOOK_EVERY_S, FenceFile  # the standard library alone, too

WATCH_LOCK = "fence-watch.lock"
AGENT_LOCK = "fence-agent.lock"
LOG = "fence-watch.log"
METADATA = "urn:dfrs-testbed:guest:1"  # as in `domain`
_GUEST = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")
_VIRSH_WITHIN_S = 20.0  # QEMU is killed within 15 s if it does not end by itself
_GONE_FOR_S = 60.0  # an order of a dead agent may still be carried out by libvirt
_FLOCK = "hhqqi4x"


def holder(path: Path) -> int:
    """Return the process that holds the lock of a file, 0 if there is none; only for other processes."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
        return 0 if kind == fcntl.F_UNLCK else int(pid)
    finally:
        os.close(descriptor)


def hold(path: Path) -> int:
    """Lock a file until the returned descriptor is closed; raises `OSError` if another process has locked it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class Watch:
    """The guests of one agent."""

    def __init__(self, folder: Path, uri: str, virsh: str) -> None:
        self._folder = folder
        self._file = FenceFile(folder)
        self._virsh = [virsh, "-q", "-c", uri]
        self._destroying: dict[str, threading.Thread] = {}
        self._gone_s: dict[str, float] = {}  # since when guests are not there, of those whose fences have fallen
        self._ask_s = 0.0  # when the hypervisor is asked again

    def run(self) -> None:
        """Destroy guests until there is nothing left to do."""
        while not self._look():
            time.sleep(LOOK_EVERY_S)  # polled: fences fall by the monotonic clock, which sends no event

    def _look(self) -> bool:
        """Destroy the guests that must not run now; return whether no such guest can appear any more."""
        due = {guest for guest in self._file.look() if _GUEST.fullmatch(guest)}
        self._gone_s = {guest: since_s for guest, since_s in self._gone_s.items() if guest in due}
        if due and time.monotonic() >= self._ask_s:
            self._enforce(due)
        gone = {guest for guest, since_s in self._gone_s.items() if time.monotonic() - since_s >= _GONE_FOR_S}
        fences = self._file.fences
        left = [guest for guest in fences.guests() if guest not in gone or guest in fences.arriving()]
        return not left and not holder(self._folder / AGENT_LOCK)

    def _enforce(self, due: set[str]) -> None:
        listed = self._ask("list", "--name")
        if listed is None:
            return
        there = due & set(listed.split())
        now_s = time.monotonic()
        self._gone_s = {guest: self._gone_s.get(guest, now_s) for guest in due - there}
        for guest in there:
            if guest not in self._destroying or not self._destroying[guest].is_alive():
                self._destroying[guest] = threading.Thread(target=self._destroy, args=(guest,), daemon=True)
                self._destroying[guest].start()
        self._ask_s = now_s + (0.0 if there else 2 * LOOK_EVERY_S)

    def _destroy(self, guest: str) -> None:
        """Destroy a guest, unless the domain of that name is not the testbed's."""
        xml = self._ask("dumpxml", "--domain", guest)
        if xml is not None and ET.fromstring(xml).find(f"metadata/{{{METADATA}}}guest") is not None:  # noqa: S314  # by this machine's libvirt
            self._ask("destroy", "--domain", guest)

    def _ask(self, *words: str) -> str | None:
        """Return what virsh prints, None if it fails."""
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(  # noqa: S603  # argument lists of our own making, no shell
                [*self._virsh, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True, timeout=_VIRSH_WITHIN_S, check=True,
            )  # fmt: skip
            return done.stdout
        return None


def main() -> None:
    """Watch a folder, unless another process does."""
    folder, uri, virsh = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        lock = hold(folder / WATCH_LOCK)
    except OSError:
        return
    try:
        Watch(folder, uri, virsh).run()
    except Exception:  # raised again: its standard error goes nowhere, so this file has the traceback
        (folder / LOG).write_text(traceback.format_exc(), encoding="utf-8")
        raise
    finally:
        with contextlib.suppress(OSError):
            (folder / WATCH_LOCK).unlink()
        os.close(lock)


if __name__ == "__main__":
    main()
