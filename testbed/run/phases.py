"""Phases of a job, and the transitions between them that operations make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from testbed.errors import TestbedError


class Phase(StrEnum):
    """The phase of a job, as far as the controller knows."""

    COMING = "coming"
    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    SAVING = "saving"
    SAVED = "saved"
    TRANSFERRING = "transferring"
    RESTORING = "restoring"
    MIGRATING = "migrating"
    DONE = "done"
    FAILED = "failed"


ENDED: Final = frozenset({Phase.DONE, Phase.FAILED})


@dataclass(frozen=True, slots=True)
class Course:
    """The phases of a job before an operation, during it, and after its success; a failure leads back to `before`."""

    before: Phase
    during: Phase
    after: Phase


COURSES: Final[Mapping[str, Course]] = {
    "start": Course(Phase.WAITING, Phase.STARTING, Phase.RUNNING),
    "cap": Course(Phase.RUNNING, Phase.RUNNING, Phase.RUNNING),
    "save": Course(Phase.RUNNING, Phase.SAVING, Phase.SAVED),
    "transfer": Course(Phase.SAVED, Phase.TRANSFERRING, Phase.SAVED),
    "restore": Course(Phase.SAVED, Phase.RESTORING, Phase.RUNNING),
    "migrate": Course(Phase.RUNNING, Phase.MIGRATING, Phase.RUNNING),
}
"""The phases of each operation, by its verb."""


class IllegalEventError(TestbedError):
    """An event that contradicts earlier ones: `event` would change `job` from `state` to `wanted`."""

    def __init__(self, event: str, t_s: float, job: int | None, state: str, wanted: str, reason: str) -> None:
        self.event = event
        self.t_s = t_s
        self.job = job
        self.state = state
        self.wanted = wanted
        self.reason = reason
        about = "" if job is None else f" of job {job}"
        super().__init__(f"{event}{about} at {t_s:g} s: {state} -> {wanted} is illegal: {reason}")
