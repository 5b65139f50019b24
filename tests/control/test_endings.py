"""A job that has ended stays ended, with any reports about it in the same moment."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.control.disturbed import Disturbed, give_up
from support.control.rehearsal import Watcher, five_jobs, movers, rehearse

from node_agent.drivers.null import NullDriver
from testbed.bus.guest_details import report_of
from testbed.bus.messages import GuestEvent
from testbed.control.clearing import Clearing
from testbed.control.cluster import LiveJob
from testbed.errors import RunError
from testbed.lab.job_guests import JobGuests
from testbed.lab.operations import Operations


@pytest.mark.parametrize("succeeds", [True, False])
@pytest.mark.parametrize("operation", ["start", "set_running_cap"])
def test_a_job_that_fails_in_the_moment_in_which_its_operation_ends_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, succeeds: bool
) -> None:
    real, failing = getattr(Operations, operation), iter([True])

    async def operate(self: Operations, live: JobGuests, *arguments: object) -> object:
        found = await real(self, live, *arguments)
        if len(live.specs) == 1 and "alone" not in live.guests[0] and next(failing, False):
            (node, *_) = nodes = live.state.running_on
            if not succeeds:
                await self.stop(live, nodes)  # as a failed start does
            told = GuestEvent(node="node", guest=live.guests[0], event="failed", mono_ns=1, detail={"reason": "killed"})
            self._nodes.on_guest_event(node, report_of(told))
            if not succeeds:
                raise RunError("its guest is gone")
        return found

    monkeypatch.setattr(Operations, operation, operate)
    result, _ = rehearse(tmp_path, five_jobs(), watcher=Watcher(give_up))
    assert next(failing, None) is None, "the failing method was called"
    assert result.summary["done"] == 4
    (reason,) = result.summary["failed"].values()
    assert reason == "task 0: killed"


def test_a_withdrawn_job_that_is_reported_done_while_it_is_cleared_away_is_done_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clear, reporting = Clearing.clear, iter([True])

    async def clear_late(self: Clearing, live: LiveJob) -> None:
        if next(reporting, False):
            for node, guest in zip(live.state.running_on, live.guests, strict=True):
                done = GuestEvent(node="node", guest=guest, event="done", mono_ns=1, detail={"checksum": "null"})
                self._operations._nodes.on_guest_event(node, report_of(done))
        await clear(self, live)

    monkeypatch.setattr(Clearing, "clear", clear_late)
    world = Disturbed(lambda world: world.kill("node-0", 5.0))
    summary, journal = world.run(tmp_path, five_jobs(), on_node_loss="restart")
    assert next(reporting, None) is None, "a job was withdrawn"
    ends = [entry["job"] for entry in journal if entry["kind"] == "job" and entry["state"] == "done"]
    assert sorted(ends) == [1, 2, 3, 4, 5]
    assert summary["done"] == 5


def test_a_move_is_accounted_for_if_a_task_ends_before_its_first_report_of_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = NullDriver._begin

    def begin_silently(self: NullDriver, guest: str) -> None:
        if self._get(guest).units:  # it was restored
            self._arm(self._get(guest))
        else:
            begin(self, guest)

    monkeypatch.setattr(NullDriver, "_begin", begin_silently)
    result, journal = rehearse(tmp_path, movers())
    restored = [entry["job"] for entry in journal if entry["kind"] == "outcome" and entry["verb"] == "restore"]
    accounts = [entry for entry in journal if entry["kind"] in ("rescheduling", "rescheduling_cut_off")]
    assert restored
    assert sorted(entry["job"] for entry in accounts) == sorted(restored)
    cut_off = [entry for entry in accounts if entry["kind"] == "rescheduling_cut_off"]
    assert result.summary["metrics"]["reschedulings_cut_off"]["value"] == len(cut_off)
    assert result.summary["done"] == len(movers())
