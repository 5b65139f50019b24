"""Whether done jobs ended with the checksums of their work, which the controller works out and compares itself.

Agents compare beside their guests and tell a wrong result at once; what they tell is their word. The controller works
out checksums after the last job has ended, when it takes no core from a measurement, and not all of them: what a task
without messages comes to is known within a millisecond for each worker, that of a rank takes some 30 µs a message. So
all jobs without messages are compared first, then whole parallel jobs, in an order that no node can foresee, as far as
the time goes. What was not compared is told.

A checksum shows that a task's work was done wrong, or that its node did not work it out. Whoever works it out without
doing the work has the right one: that shows in the rate of the work alone (`testbed.control.work_rates`).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from secrets import SystemRandom

import msgspec

from testbed.bus.messages import GuestSpec
from testbed.control.cluster import LiveJob
from testbed.run.events import Results
from testbed.run.phases import Phase

_MESSAGE_S = 40e-6  # to work out what a rank receives in a message, and for each byte of it
_BYTE_S = 1e-9
_draw = SystemRandom()
NO_CHECKSUMS = "its nodes tell no checksums"


@dataclass(frozen=True, slots=True)
class Claim:
    """The checksums that nodes reported for a finished job, one for each task."""

    job_id: int
    specs: tuple[GuestSpec, ...]
    checksums: Mapping[int, str]


@dataclass(slots=True)
class Verdicts:
    """How many jobs came to what their work comes to; which did not, or were not compared, with the reason."""

    right: int = 0
    wrong: dict[int, str] = field(default_factory=dict)
    unchecked: dict[int, str] = field(default_factory=dict)

    def summary(self) -> dict[str, object]:
        """Return what summary.json says of it: ids of jobs by verdict."""
        return {"right": self.right, "wrong": self._wrong(), "unchecked": self._unchecked()}

    def event(self, times: tuple[float, float]) -> Results:
        """Return the verdicts for the journal; `times` are its `t_s` and `trace_s`."""
        unchecked = {reason: tuple(jobs) for reason, jobs in self._unchecked().items()}
        return Results(*times, right=self.right, wrong=self._wrong(), unchecked=unchecked)

    def _wrong(self) -> dict[str, str]:
        return {str(job_id): reason for job_id, reason in sorted(self.wrong.items())}

    def _unchecked(self) -> dict[str, list[int]]:
        reasons: dict[str, list[int]] = {}
        for job_id, reason in sorted(self.unchecked.items()):
            reasons.setdefault(reason, []).append(job_id)
        return reasons


def claims_of(jobs: Iterable[LiveJob]) -> list[Claim]:
    """Return the claims of the jobs that are done and whose results are to be verified."""
    return [
        Claim(live.job_id, live.specs, dict(live.state.checksums))
        for live in jobs
        if live.state.phase is Phase.DONE and live.verified
    ]


async def check_results(jobs: Iterable[LiveJob], capabilities: Collection[Sequence[str]], budget_s: float) -> Verdicts:
    """Compare in a thread for `budget_s` wall seconds at most; `capabilities` are those of each node."""
    claims = claims_of(jobs)
    if not any("checksums" in able for able in capabilities):
        return Verdicts(unchecked=dict.fromkeys((claim.job_id for claim in claims), NO_CHECKSUMS))
    stop = threading.Event()
    try:
        return await asyncio.to_thread(compare_claims, claims, budget_s, given_up=stop.is_set)
    finally:
        stop.set()


def compare_claims(
    claims: Sequence[Claim],
    budget_s: float,
    *,
    now_s: Callable[[], float] = time.monotonic,
    shuffle: Callable[[list[Claim]], None] = _draw.shuffle,
    given_up: Callable[[], bool] = lambda: False,
) -> Verdicts:
    """Work out what jobs must come to and compare, all ranks of each, until `budget_s` have passed by `now_s`."""
    ends_s = now_s() + budget_s
    drawn = list(claims)
    shuffle(drawn)
    verdicts = Verdicts()
    for claim in sorted(drawn, key=lambda claim: len(claim.specs) > 1):
        cost_s, left_s = sum(map(_cost_s, claim.specs)), ends_s - now_s()
        if cost_s > left_s:
            verdicts.unchecked[claim.job_id] = f"not among those drawn for {budget_s:g} s of comparing"
            continue
        wrong, unchecked = _compare(claim, lambda: given_up() or now_s() >= ends_s)
        if wrong:
            verdicts.wrong[claim.job_id] = wrong
        elif unchecked:
            verdicts.unchecked[claim.job_id] = unchecked
        else:
            verdicts.right += 1
    return verdicts


def _compare(claim: Claim, given_up: Callable[[], bool]) -> tuple[str, str]:
    """Return why a job's result is wrong, and else why it was not compared; both are empty if it is right."""
    from node_agent.programs.catalogue import installed  # noqa: PLC0415  # numpy takes time to load: only for this
    from node_agent.programs.task import Task, TaskError  # noqa: PLC0415  # likewise
    from node_agent.verifier import work_out  # noqa: PLC0415  # likewise

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
            return f"task {spec.task}: it is done with checksum {found}; its work comes to {answer.checksum}", ""
    return "", ""


def _cost_s(spec: GuestSpec) -> float:
    """Estimate the seconds that it takes to work out what a task comes to, but for its work, which is cheap."""
    program = spec.program
    if program.ranks == 1:
        return 0.0
    from node_agent.programs.topology import neighbours  # noqa: PLC0415  # see above

    iterations = -(-program.work_units // max(1, program.units_per_iteration))
    near = neighbours(program.topology, program.rank, program.ranks)
    return iterations * len(near) * (_MESSAGE_S + _BYTE_S * program.message_bytes)
