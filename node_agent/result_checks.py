"""Checks of finished jobs' checksums: `python -m node_agent.result_checks`, for a controller.

The expected checksum of a task without messages takes a millisecond per worker, that of a rank a few µs per message.
So all jobs without messages are compared first, then whole parallel jobs, in an order that no node can predict, until
the time is used up. Jobs that were not compared are reported.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from secrets import SystemRandom

import msgspec

from node_agent.programs.catalogue import installed
from node_agent.programs.task import Task, TaskError
from node_agent.verifier import work_out
from testbed.bus.messages import GuestSpec
from testbed.bus.results import Claim, Comparison, Verdicts
from testbed.bus.topology import neighbours

_MESSAGE_S = 5e-6  # seconds to compute a message that a rank receives, plus `_BYTE_S` for each byte of it
_BYTE_S = 1e-9
_draw = SystemRandom()


def compare_claims(
    claims: Sequence[Claim],
    budget_s: float,
    *,
    now_s: Callable[[], float] = time.monotonic,
    shuffle: Callable[[list[Claim]], None] = _draw.shuffle,
) -> Verdicts:
    """Compute and compare the jobs' checksums, all ranks of each, until `budget_s` have passed by `now_s`."""
    ends_s = now_s() + budget_s
    drawn = list(claims)
    shuffle(drawn)
    verdicts = Verdicts()
    for claim in sorted(drawn, key=lambda claim: len(claim.specs) > 1):
        cost_s, left_s = sum(map(_cost_s, claim.specs)), ends_s - now_s()
        if cost_s > left_s:
            verdicts.unchecked[claim.job_id] = f"not among those drawn for {budget_s:g} s of comparing"
            continue
        wrong, unchecked = _compare(claim, lambda: now_s() >= ends_s)
        if wrong:
            verdicts.wrong[claim.job_id] = wrong
        elif unchecked:
            verdicts.unchecked[claim.job_id] = unchecked
        else:
            verdicts.right += 1
    return verdicts


def _compare(claim: Claim, given_up: Callable[[], bool]) -> tuple[str, str]:
    """Return why a job's result is wrong, or else why it was not compared; both are empty if it is right."""
    if (name := claim.specs[0].program.name) not in installed():
        return "", f"program {name!r} is not installed where the controller runs"
    for spec in claim.specs:
        found = claim.checksums.get(spec.task, "")
        try:
            answer = work_out(Task.from_spec(msgspec.to_builtins(spec)), given_up)
        except TaskError as error:
            return "", str(error)
        if answer.unknown:
            return "", answer.unknown
        if not answer.checksum:
            return "", "there was no time left to compare it"
        if found != answer.checksum:
            return f"task {spec.task}: it is done with checksum {found}: expected {answer.checksum}", ""
    return "", ""


def _cost_s(spec: GuestSpec) -> float:
    """Estimate the seconds to compute a task's expected checksum, without the cheap part for its work."""
    program = spec.program
    if program.ranks == 1:
        return 0.0
    iterations = -(-program.work_units // max(1, program.units_per_iteration))
    near = neighbours(program.topology, program.rank, program.ranks)
    return iterations * len(near) * (_MESSAGE_S + _BYTE_S * program.message_bytes)


def main() -> None:
    """Compare the claims on standard input, and print the verdicts."""
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=Comparison)
    sys.stdout.buffer.write(msgspec.json.encode(compare_claims(asked.claims, asked.budget_s)))


if __name__ == "__main__":
    main()
