"""Transfers of shares within a job: checks the reports of agents, and records them as points."""

from __future__ import annotations

from collections.abc import Mapping

from testbed.bus.suspicious_acts import ActKind
from testbed.bus.telemetry import BankSample, GuestSample
from testbed.control.cluster import LiveJob
from testbed.control.recorder import Recorder
from testbed.shares.node import BANK

_ROUNDING_CORES = 1e-6  # agents round shares to this precision


class ShareFlows:
    """Records the shares that guests and banks took from each other: one point per change, at the sample's time."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._last: dict[tuple[int, str, str], tuple[str, float]] = {}  # by job, giver and receiver: guest, amount

    def take(self, live: LiveJob, task: int, sample: GuestSample, node: int, time_ns: int) -> dict[str, float]:
        """Record the transfers in a task's sample from `node`; return the bank's fields of the guest's point.

        A sample with guests of another job, or with an impossible bank, is a suspicious act and is left out.
        """
        if not sample.taken_cores and sample.bank is None:
            return {}
        if why := _wrong(live, task, sample):
            what = f"it reports shares of job {live.job_id} task {task} {why}"
            self._recorder.suspect(node, ActKind.FALSE_REPORT, what)
            return {}
        self._note(live, sample.guest, str(task), sample.taken_cores, node, time_ns)
        if sample.bank is None:
            return {}
        self._note(live, sample.guest, BANK, sample.bank.taken_cores, node, time_ns)
        return {"bank_cores": sample.bank.share_cores}

    def _note(
        self, live: LiveJob, guest: str, receiver: str, taken_cores: Mapping[str, float], node: int, time_ns: int
    ) -> None:  # fmt: skip
        tasks = {name: str(task) for task, name in enumerate(live.guests)}
        for name, cores in taken_cores.items():
            giver = tasks.get(name, BANK)
            key = live.job_id, giver, receiver
            if self._last.get(key) == (guest, cores):
                continue
            self._last[key] = guest, cores
            tags = {
                "node": self._recorder.node_names[node], "job": str(live.job_id), "giver": giver, "receiver": receiver
            }  # fmt: skip
            self._recorder.point("share_transfer", tags, {"taken_cores": cores}, time_ns)


def bank_cores(live: LiveJob, task: int, sample: GuestSample) -> float | None:
    """Return the shares of the job's bank in a task's sample; None without a bank, or for an impossible value."""
    return None if sample.bank is None or _wrong(live, task, sample) else sample.bank.share_cores


def _wrong(live: LiveJob, task: int, sample: GuestSample) -> str:
    """Return the contradiction in the shares of a sample, as the end of a sentence; empty for a valid sample."""
    booked_cores = [spec.share_cores for spec in live.specs if spec.share_cores is not None]
    guests = set(live.guests)
    if not booked_cores:
        return "that has none"
    if others := sample.taken_cores.keys() - (guests - {sample.guest}) - {BANK}:
        return f"from {min(others)!r}: expected another guest of the job, or its bank"
    if sample.bank is not None and task != 0:
        return "with a bank: expected that of the job's first task"
    return "" if sample.bank is None else _wrong_bank(sample.bank, guests, sum(booked_cores) + _ROUNDING_CORES)


def _wrong_bank(bank: BankSample, guests: set[str], most_cores: float) -> str:
    if others := bank.taken_cores.keys() - guests:
        return f"in a bank, from {min(others)!r}: expected a guest of the job"
    if bank.share_cores > most_cores:
        return f"in a bank of {bank.share_cores:g} cores: expected at most the job's {most_cores:g}"
    return ""
