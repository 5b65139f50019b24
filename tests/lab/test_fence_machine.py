"""No duplicate guest: random schedules of faults against the classes that decide about fences and generations."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from support.lab import fence_world
from support.lab.fence_machine import TOTALS, FenceMachine
from support.lab.fence_world import FENCE_S, Node

from node_agent.fences import Fences
from node_agent.generations import Generations
from node_agent.guest_guard import Changes, GuestGuard
from testbed.bus.messages import AnyAction, RenewFences, Stop
from testbed.lab import fences
from testbed.lab.fences import NEVER_S, Clearance, FenceBook

EXAMPLES = int(os.environ.get("DFRS_PROTOCOL_EXAMPLES", "500"))
MOST_EXAMPLES = 20_000  # a defect must be found by then
_EVENTS = (
    "start", "restore", "save", "migrate", "guest arrives", "renew", "late renewal", "node is declared lost",
    "node returns", "node is cut off", "node reboots", "controller crashes", "controller resumes", "agent crashes",
    "agent restarts", "deadline", "repeat or delay", "reorder", "lose a message", "destroyed by its fence",
    "destroyed by the keeper", "refused: FencedError", "refused: OldGenerationError", "began again",
    "began again after a quiet time",
)  # fmt: skip


def play(examples: int, **more: object) -> None:
    found = settings(
        max_examples=examples, stateful_step_count=50, deadline=None, database=None,
        suppress_health_check=list(HealthCheck), **more,
    )  # fmt: skip
    run_state_machine_as_test(FenceMachine, settings=found)


def test_no_task_ever_runs_twice() -> None:
    TOTALS.clear()
    while TOTALS["examples"] < EXAMPLES:  # in several searches, because the memory of a search grows with its examples
        play(min(EXAMPLES, 1000))
    print("\n".join(f"{count:9} {what}" for what, count in sorted(TOTALS.items())))  # noqa: T201  # of the long lane
    assert [what for what in _EVENTS if not TOTALS[what]] == [], "these events never occurred in the schedules"


def renewals_by_duration(patch: pytest.MonkeyPatch) -> None:
    admit = GuestGuard.admit

    def by_duration(guard: GuestGuard, action: AnyAction) -> Changes:
        if not isinstance(action, RenewFences):
            return admit(guard, action)
        guard.fences.renew(guard.fences.clock, guard._now_ns() + int(FENCE_S * 1e9), action.guests)
        return Changes(fences=True)

    patch.setattr(GuestGuard, "admit", by_duration)


def no_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FenceBook, "ended_s", lambda _book, _node, _guest: NEVER_S)


def no_generations(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Generations, "admit", lambda _generations, _guest, _generation: False)
    patch.setattr(Generations, "create", lambda _generations, _guest, _generation: False)


def no_drift(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fences, "DRIFT_FRAC", 0.0)


def fences_not_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Node, "_write", lambda node: setattr(node, "disk", fence_world.encode_generations(node.guard.generations))
    )


def generations_not_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Node, "_write", lambda node: setattr(node, "fence_file", node.guard.fences.encode()))


def late_starts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Fences, "refusal", lambda _fences, _clock, _until_ns, _now_ns: None)


def any_clock(patch: pytest.MonkeyPatch) -> None:
    renew = Fences.renew
    patch.setattr(Fences, "refusal", lambda _fences, _clock, until_ns, now_ns: "late" if until_ns <= now_ns else None)
    patch.setattr(Fences, "renew", lambda table, _clock, until_ns, guests: renew(table, table.clock, until_ns, guests))


def nothing_inherited(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FenceBook, "inherit", lambda _book, _node, _guest, _taken_over_s: None)


def stops_without_generation(patch: pytest.MonkeyPatch) -> None:
    admit = GuestGuard.admit
    patch.setattr(
        GuestGuard, "admit", lambda guard, action: Changes() if isinstance(action, Stop) else admit(guard, action)
    )


def targets_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Clearance, "left", lambda clearance, now_s: clearance._running(clearance._sources, now_s))


def check_found(defect: Callable[[pytest.MonkeyPatch], None]) -> None:
    TOTALS.clear()
    with pytest.MonkeyPatch.context() as patch:
        defect(patch)
        with pytest.raises(AssertionError, match=r"runs twice|an old life goes on"):
            play(MOST_EXAMPLES, phases=[Phase.generate], derandomize=True)
    print(f"{defect.__name__}: found after {TOTALS['examples']} examples")  # noqa: T201


@pytest.mark.parametrize("defect", [no_wait, no_generations, fences_not_kept, nothing_inherited])
def test_the_machine_finds_a_defect_of_the_protocol(defect: Callable[[pytest.MonkeyPatch], None]) -> None:
    check_found(defect)


@pytest.mark.long
@pytest.mark.parametrize(
    "defect",
    [
        renewals_by_duration, no_drift, generations_not_kept, late_starts, any_clock, stops_without_generation,
        targets_forgotten,
    ],
)  # fmt: skip
def test_the_machine_finds_a_rare_defect_of_the_protocol(defect: Callable[[pytest.MonkeyPatch], None]) -> None:
    check_found(defect)
