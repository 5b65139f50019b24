"""The lease of guests that an agent adopts: it may last, be released, be replaced, or expire without a message."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from node_agent.drivers.null import NullDriver
from node_agent.lease_notes import FILE
from node_agent.survivors import Survivors
from testbed.bus.lease import LeaseGuard, new_token, token_digest
from testbed.bus.messages import GuestSpec, Lease, ProgramSpec, encode

TOPIC = "testbed/v1/t/lease"
TOKEN, OTHER = new_token(), new_token()
TTL_S = 90.0
SPEC = GuestSpec(
    guest="a", run="t", job=1, task=0, cpu_cores=1.0, memory_mib=10,
    program=ProgramSpec(name="eatcpu", work_units=10, units_per_iteration=1, seed=1),
)  # fmt: skip


class Outliving(NullDriver):
    """A driver that finds guests of an earlier agent."""

    def __init__(self, found: Sequence[GuestSpec]) -> None:
        super().__init__()
        self.keep_s = 0.0
        self.on_saved = None
        self.found_again = list(found)
        self.settled_guests: list[str] = []

    def taken_over(self) -> list[GuestSpec]:
        return self.found_again

    def settled(self, guest: str) -> None:
        self.settled_guests.append(guest)


def lease(of: str, **terms: object) -> Lease:
    given = {"holder": "h", "ttl_s": TTL_S, "expires_unix_s": 1e12, "on_controller_loss": "pause", **terms}
    return msgspec.convert({"digest": token_digest(of), **given}, Lease)


class Next:
    """The next agent, at a time of its own clock; the earlier agent had received a lease."""

    def __init__(self, folder: Path) -> None:
        last = LeaseGuard(lambda: 0.0)
        last.hear(TOPIC, encode(lease(TOKEN)))
        Survivors(Outliving([]), folder, last).keep_lease()
        self.now_s = 0.0
        self.guard = LeaseGuard(lambda: self.now_s)
        self.survivors = Survivors(Outliving([SPEC]), folder, self.guard)
        assert self.survivors.found() == [SPEC]


def test_a_lease_that_is_not_heard_again_runs_out_with_its_own_terms(tmp_path: Path) -> None:
    later = Next(tmp_path)
    later.now_s = TTL_S - 1
    assert not later.guard.run_out()
    assert later.guard.allows(TOKEN)
    later.now_s = TTL_S + 1
    assert later.guard.run_out()
    assert later.guard.on_controller_loss == "pause"
    assert not later.guard.allows(TOKEN)


def test_a_lease_that_is_renewed_goes_on(tmp_path: Path) -> None:
    later = Next(tmp_path)
    later.now_s = TTL_S - 1
    later.guard.hear(TOPIC, encode(lease(TOKEN)))
    later.now_s = TTL_S + 1
    assert not later.guard.run_out()
    assert later.guard.hear(TOPIC, encode(lease(OTHER))) is False
    assert not later.guard.allows(OTHER), "a renewed lease counts as any other"


def test_a_lease_that_was_released_meanwhile_is_over(tmp_path: Path) -> None:
    later = Next(tmp_path)
    assert later.guard.hear(TOPIC, encode(lease(TOKEN, released=True, token=TOKEN)))
    assert not later.guard.allows(TOKEN)


def test_a_lease_that_was_replaced_meanwhile_has_run_out(tmp_path: Path) -> None:
    later = Next(tmp_path)
    later.guard.hear(TOPIC, encode(lease(OTHER)))
    assert later.guard.allows(OTHER)
    assert not later.guard.allows(TOKEN)
    assert later.guard.run_out()
    assert not later.guard.run_out()


def test_an_old_record_of_another_lease_replaces_nothing(tmp_path: Path) -> None:
    later = Next(tmp_path)
    later.guard.hear(TOPIC, encode(lease(OTHER, expires_unix_s=1.0)))
    assert later.guard.allows(TOKEN)


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff"])
def test_guests_without_a_readable_lease_are_nobodys(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / FILE).write_bytes(content)
    survivors = Survivors(Outliving([SPEC]), tmp_path, LeaseGuard(lambda: 0.0))
    assert survivors.found() == [SPEC]
    assert survivors.orphaned


def test_without_guests_the_last_lease_does_not_matter(tmp_path: Path) -> None:
    Next(tmp_path)
    guard = LeaseGuard(lambda: 0.0)
    survivors = Survivors(Outliving([]), tmp_path, guard)
    assert survivors.found() == []
    assert (survivors.orphaned, guard.live) == (False, False)


def test_a_note_is_written_when_terms_change_only_and_holds_no_token(tmp_path: Path) -> None:
    guard = LeaseGuard(lambda: 0.0)
    survivors = Survivors(Outliving([]), tmp_path, guard)
    guard.hear(TOPIC, encode(lease(TOKEN)))
    survivors.keep_lease()
    before = (tmp_path / FILE).stat()
    guard.hear(TOPIC, encode(lease(TOKEN, expires_unix_s=2e12)))
    survivors.keep_lease()
    assert (tmp_path / FILE).stat().st_ino == before.st_ino
    assert TOKEN not in (tmp_path / FILE).read_text()
