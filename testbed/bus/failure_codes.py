"""Failure codes of jobs: set where the failure is detected, and shared by all parts of the testbed."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.errors import FailureCode

MEANINGS = {
    FailureCode.GUEST_FAILED: "a task's program or guest ended with an error",
    FailureCode.WRONG_RESULT: "a task ended, but its checksum is not the expected one",
    FailureCode.NO_PROGRESS: "the tasks ran, but made no progress for too long",
    FailureCode.NODE_LOST: "a node that held the job's guests or images went away",
    FailureCode.AGENT_RESTARTED: "the agent of such a node restarted, and its guests were lost",
    FailureCode.LEASE_LOST: "the controller's lease ran out at an agent, which then destroyed its guests",
    FailureCode.FENCED: "a node did not hear from the controller until a guest's fence, and destroyed the guest",
    FailureCode.OLD_GENERATION: "a command was for an earlier life of a guest than the agent knows",
    FailureCode.IMAGE_LOST: "a saved image is missing, or differs from what was saved",
    FailureCode.DOES_NOT_FIT: "the job does not fit on the nodes that are there",
    FailureCode.START_FAILED: "its guests could not be started",
    FailureCode.CAP_FAILED: "its CPU caps could not be set",
    FailureCode.SAVE_FAILED: "its guests could not be saved",
    FailureCode.TRANSFER_FAILED: "its images could not be copied to another node",
    FailureCode.RESTORE_FAILED: "its guests could not be restored from their images",
    FailureCode.MIGRATE_FAILED: "a guest was lost in a live migration",
    FailureCode.UNABLE: "the driver of a node cannot do what was needed",
    FailureCode.DELETED: "a user deleted it",
}
"""The meaning of each code, as a text for people."""

_BY_VALUE = {code.value: code for code in FailureCode}


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason of a job's failure: a code for programs and a text for people."""

    code: FailureCode
    text: str


def known_code(told: object) -> FailureCode | None:
    """Return the code that another program reported; None if there is none, or if this version does not know it."""
    return _BY_VALUE.get(told) if isinstance(told, str) else None
