"""Verification of the checksums of done jobs by the controller.

Agents compare checksums while their guests run, and report a wrong result at once, but an agent may lie. After the last
job has ended, when no measurement needs the cores, the controller compares as many checksums as its time budget
permits. A separate process of the agents' package, which has the code of the programs, computes them
(`node_agent.result_checks`).

A wrong checksum shows that a task's work was done wrong or not at all. A node can also compute the right checksum
without the work; only the rate of the work reveals this (`testbed.control.work_rates`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterable, Sequence
from subprocess import PIPE

import msgspec

from testbed.bus.results import Claim, Comparison, Verdicts
from testbed.control.cluster import LiveJob
from testbed.host.interpreter import module_argv
from testbed.run.events import Results
from testbed.run.phases import Phase

NO_CHECKSUMS = "its nodes report no checksums"
_log = logging.getLogger(__name__)


def results_event(verdicts: Verdicts, times: tuple[float, float]) -> Results:
    """Return the verdicts for the journal; `times` are its `t_s` and `trace_s`."""
    unchecked = {reason: tuple(jobs) for reason, jobs in verdicts.unchecked_jobs().items()}
    return Results(*times, right=verdicts.right, wrong=verdicts.reasons(), unchecked=unchecked)


def verdicts_of(event: Results) -> Verdicts:
    """Return the verdicts of a journal entry."""
    wrong = {int(job): reason for job, reason in event.wrong.items()}
    return Verdicts(event.right, wrong, {job: reason for reason, jobs in event.unchecked.items() for job in jobs})


def claims_of(jobs: Iterable[LiveJob]) -> list[Claim]:
    """Return the claims of the jobs that are done and whose results are to be verified."""
    return [
        Claim(live.job_id, live.specs, dict(live.state.checksums))
        for live in jobs
        if live.state.phase is Phase.DONE and live.verified
    ]


async def check_results(jobs: Iterable[LiveJob], capabilities: Collection[Sequence[str]], budget_s: float) -> Verdicts:
    """Verify results for `budget_s` wall seconds at most; `capabilities` has the capabilities of each node."""
    claims = claims_of(jobs)
    if not any("checksums" in able for able in capabilities):
        return Verdicts(unchecked=dict.fromkeys((claim.job_id for claim in claims), NO_CHECKSUMS))
    if not claims:
        return Verdicts()
    # its own session shields the child from the terminal's Ctrl-C; the block below ends it
    child = await asyncio.create_subprocess_exec(
        *module_argv("node_agent.result_checks"), stdin=PIPE, stdout=PIPE, start_new_session=True
    )
    try:
        said, _ = await child.communicate(msgspec.json.encode(Comparison(tuple(claims), budget_s)))
        return msgspec.json.decode(said, type=Verdicts)
    except msgspec.MsgspecError as error:  # the child was killed, or a plug-in program ended it
        reason = f"the comparison ended with exit code {child.returncode}"
        _log.warning("%s: %s", reason, error)
        return Verdicts(unchecked=dict.fromkeys((claim.job_id for claim in claims), reason))
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()
