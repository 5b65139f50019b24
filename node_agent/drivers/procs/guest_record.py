"""The record of a process guest at its keeper, by which the next agent takes the guest over."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from node_agent.drivers.pmi.server import PmiServer
from node_agent.drivers.protocol import DriverError
from testbed.bus.messages import GuestSpec
from testbed.bus.telemetry import Supersteps


class State(StrEnum):
    """The state of a guest, as reported in samples."""

    WAITING = "waiting"  # for its MPI job to begin
    STARTING = "starting"
    RUNNING = "running"
    HELD = "held"
    SAVING = "saving"
    ENDED = "ended"


class GuestRecord(msgspec.Struct, frozen=True):
    """A guest between two agents. `order` is the save that was ordered (iteration, path), `report` its result.

    `pid` is the process that has the control channel. `pmi` is the state of its rank's process manager. A guest that is
    `parked` is being saved whole, so that its control channel is closed.
    """

    spec: GuestSpec
    cap_cores: float
    state: State
    made: bool
    log: str
    made_unix_s: float
    image: str | None = None
    pid: int | None = None
    held_at: int = 0
    order: tuple[int, str] | None = None
    report: dict[str, Any] | None = None
    segments: tuple[str, ...] = ()
    done: tuple[int, dict[str, Any]] | None = None
    told: tuple[int, int] | None = None  # work units, and when
    steps: Supersteps | None = None
    trouble: str = ""
    pmi: PmiServer | None = None
    parked: bool = False

    def encode(self) -> str:
        """Return it as text."""
        return msgspec.json.encode(self).decode()


def decode_record(text: str) -> GuestRecord:
    """Read a record; raises `DriverError` for one of another version."""
    try:
        return msgspec.json.decode(text, type=GuestRecord)
    except msgspec.MsgspecError as error:
        raise DriverError(f"the record of a guest is no such record: {error}") from error
