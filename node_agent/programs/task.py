"""The task of a program: the guest's specification as the agent sends it, read without the modules of the bus."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from testbed.bus.imbalance import PATTERN, drift_of, part
from testbed.bus.need_profile import WHOLE, Profile, parts_of
from testbed.errors import TestbedError

TOPOLOGIES = ("linear", "ring", "mesh", "torus", "all-to-all", "tree")
_KINDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "str": (str, "text"),
    "int": (int, "a count"),
    "float": ((int, float), "a number"),
}


LATER: dict[str, Any] = {"cpu_ns_per_unit": 0.0, "pace_ns": 0, "profile": WHOLE}  # not sent by earlier versions
COUNTED_PART = 4  # divisor for work that is CPU time: a core four times as slow as the measured one still does the part


class TaskError(TestbedError):
    """A task that this program cannot carry out."""


def part_of(units: int, divisor: int) -> int:
    """Return a rank's part 1/`divisor` of the units of an iteration: at least one, but all of them for 1."""
    return units if divisor == 1 else max(1, round(units / divisor))


@lru_cache(maxsize=16)
def _profile(text: str, iterations: int) -> Profile:
    return Profile(text, iterations)


@dataclass(frozen=True, slots=True)
class Task:
    """One task of one job: the fields of `GuestSpec` and its `ProgramSpec` that a program needs."""

    guest: str
    run: str
    job: int
    task: int
    memory_mib: int
    name: str
    work_units: int
    units_per_iteration: int
    seed: int
    workers: int
    rank: int
    ranks: int
    topology: str
    imbalance: str
    message_bytes: int
    touched_frac: float = 1.0
    cpu_ns_per_unit: float = 0.0
    pace_ns: int = 0
    profile: str = WHOLE

    @property
    def iterations(self) -> int:
        """The number of iterations of the work; the last one may be shorter."""
        return -(-self.work_units // self.units_per_iteration)

    def units_after(self, iterations: int) -> int:
        """Units of the job's demand that are done after so many iterations."""
        return min(self.work_units, iterations * self.units_per_iteration)

    def share(self, iteration: int) -> int:
        """Units that this rank computes in an iteration, counted from 0.

        See `testbed.bus.imbalance` and `testbed.bus.need_profile`.
        """
        units = self.units_after(iteration + 1) - self.units_after(iteration)
        if self.profile != WHOLE:
            units = _profile(self.profile, self.iterations).units(units, iteration)
        every = drift_of(self.imbalance)
        moves = 0 if every is None else iteration // every
        return part_of(units, part(self.imbalance, self.rank, self.ranks, moves))

    def counted(self, iteration: int) -> int:
        """Units of an iteration that the checksum counts: all, or the part that any core does in the CPU time."""
        return part_of(self.share(iteration), self.counted_part)

    @property
    def counted_part(self) -> int:
        """The divisor of the part of the units that the checksum counts."""
        return COUNTED_PART if self.cpu_ns_per_unit else 1

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> Task:
        """Read a specification; raises `TaskError` that names the field, its value and the expected one."""
        program = spec.get("program")
        flat = {**spec, **program} if isinstance(program, dict) else spec
        values = {field.name: flat.get(field.name) for field in fields(cls)}
        values["touched_frac"] = flat.get("touched_frac", 1.0)  # not sent by agents of earlier versions
        for name, usual in LATER.items():  # likewise
            values[name] = flat.get(name, usual)
        for field in fields(cls):
            found, (kind, wanted) = values[field.name], _KINDS[str(field.type)]
            if not isinstance(found, kind) or (isinstance(found, int | float) and found < 0):
                raise TaskError(f"{field.name} = {found!r}: expected {wanted}")
        task = cls(**values)  # type: ignore[arg-type]  # each was checked against its field's type
        task.check()
        return task

    def check(self) -> None:
        """Raise `TaskError` for inconsistent values."""
        if self.topology not in TOPOLOGIES:
            raise TaskError(f"topology = {self.topology!r}: expected one of {', '.join(TOPOLOGIES)}")
        if re.fullmatch(PATTERN, self.imbalance, re.ASCII) is None:
            raise TaskError(f"imbalance = {self.imbalance!r}: expected uniform, 1/i or drift:N, such as drift:100")
        for name in ("work_units", "units_per_iteration", "workers", "ranks"):
            if getattr(self, name) < 1:
                raise TaskError(f"{name} = {getattr(self, name)}: expected at least 1")
        self._check_profile()
        if not 0 < self.touched_frac <= 1:
            raise TaskError(f"touched_frac = {self.touched_frac}: expected more than 0 and at most 1")
        if self.rank >= self.ranks:
            raise TaskError(f"rank = {self.rank}: expected less than ranks = {self.ranks}")
        if self.name == "eatcpu" and self.ranks > 1:
            raise TaskError(f"ranks = {self.ranks}: expected 1, eatcpu sends no messages")
        least = 8 if self.topology == "tree" else 1
        if self.ranks > 1 and self.message_bytes < least:
            raise TaskError(f"message_bytes = {self.message_bytes}: expected at least {least}")

    def _check_profile(self) -> None:
        try:
            parts_of(self.profile)
        except ValueError as error:
            raise TaskError(f"profile = {error}") from error
        if self.profile != WHOLE and drift_of(self.imbalance) is not None:
            raise TaskError(f"profile = {self.profile!r}: expected {WHOLE} with imbalance = {self.imbalance!r}")
