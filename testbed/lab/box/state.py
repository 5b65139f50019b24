"""The recorded state of a lab between commands: its parts, each of which is recorded before it is created."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import msgspec

from testbed.errors import RunError, UserError
from testbed.host.locks import try_lock
from testbed.host.whole_files import write_whole
from testbed.lab.box.processes import ProcessId, wait_until
from testbed.lab.box.spec import RUN_ROOT, BoxSpec, NodeSpec, lab_dir, prefix

_FILE = "lab.json"


@dataclass(frozen=True, slots=True)
class Thing:
    """The recorded state of a part; `made` is False from the intent to create the part until the part exists."""

    made: bool = False
    process: ProcessId | None = None


@dataclass(frozen=True, slots=True)
class BoxState:
    """The state of a lab: its specification, and the parts so far, by `<kind> <name>`, in creation order.

    `phase` is `up` once every part was created and every agent is online.
    """

    spec: BoxSpec
    scenario: str
    broker_port: int
    phase: Literal["making", "up", "ending"] = "making"
    things: dict[str, Thing] = field(default_factory=dict)
    version: Literal[1] = 1

    @property
    def lab(self) -> str:
        """Name of the lab."""
        return self.spec.lab

    @property
    def nodes(self) -> tuple[NodeSpec, ...]:
        """The nodes, in the scenario's order."""
        return self.spec.nodes

    @property
    def broker_url(self) -> str:
        """The broker's URL with its password; raises `RunError` if there is none."""
        path = broker_url_file(self.lab)
        try:
            return path.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise RunError(f"lab {self.lab}: its broker has no address: {path}: {error.strerror}") from error


class Journal:
    """The state file of one lab; every change is written before the call returns. Threads may share it."""

    def __init__(self, state: BoxState) -> None:
        self.state = state
        self._lock = threading.Lock()

    def intend(self, part: str) -> None:
        """Record that a part is about to be created."""
        with self._lock:
            self._put(part, replace(self.state.things.get(part, Thing()), made=False))

    def started(self, part: str, process: ProcessId) -> None:
        """Record the process of a part."""
        with self._lock:
            self._put(part, Thing(made=False, process=process))

    def made(self, part: str) -> None:
        """Record that a part exists."""
        with self._lock:
            self._put(part, replace(self.state.things.get(part, Thing()), made=True))

    def process(self, part: str) -> ProcessId | None:
        """Return the last recorded process of a part."""
        thing = self.state.things.get(part)
        return None if thing is None else thing.process

    def phase(self, phase: Literal["making", "up", "ending"]) -> None:
        """Record the phase of the lab."""
        with self._lock:
            self._write(replace(self.state, phase=phase))

    def _put(self, part: str, thing: Thing) -> None:
        self._write(replace(self.state, things={**self.state.things, part: thing}))

    def _write(self, state: BoxState) -> None:
        folder = lab_dir(state.lab)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(folder / _FILE, msgspec.json.format(msgspec.json.encode(state), indent=1))
        self.state = state


def write_private(path: Path, content: bytes) -> None:
    """Write a file atomically, readable only for its owner."""
    write_whole(path, content, mode=0o600, durable=False)


def broker_url_file(lab: str) -> Path:
    """Return the file with the URL of a lab's broker."""
    return lab_dir(lab) / "broker.url"


def find(lab: str) -> BoxState | None:
    """Return the recorded state of a lab, or None when there is none; raises `UserError` or `RunError`."""
    path = lab_dir(lab) / _FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=BoxState)
    except FileNotFoundError:
        return None
    except PermissionError:
        raise UserError(f"{path}: only root may read it: run as root") from None
    except msgspec.DecodeError as error:
        raise RunError(f"{path}: not the state of a lab ({error}); `testbed lab down {lab}` removes the lab") from None


def labs() -> list[str]:
    """Return the names of all labs that have a folder, complete or not."""
    return sorted(path.name for path in RUN_ROOT.iterdir() if path.is_dir()) if RUN_ROOT.is_dir() else []


def check_distinct(lab: str) -> None:
    """Raise `UserError` if names of parts of another lab could equal those of this lab's parts."""
    for other in labs():
        if other != lab and (prefix(other).startswith(prefix(lab)) or prefix(lab).startswith(prefix(other))):
            raise UserError(f"lab {lab}: the names of its parts could equal those of lab {other}; choose another name")


@contextlib.contextmanager
def only_command(wait_s: float = 60.0) -> Iterator[None]:
    """Hold the machine's lock for commands that create or remove labs; raises `UserError` after `wait_s`."""
    RUN_ROOT.mkdir(mode=0o755, parents=True, exist_ok=True)
    handle = os.open(RUN_ROOT, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if not wait_until(lambda: try_lock(handle), wait_s):
            raise UserError("another `testbed lab up` or `down` is running on this machine")
        yield
    finally:
        os.close(handle)
