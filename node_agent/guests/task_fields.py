"""A task as the programs of the guest image read it from their file `task`: one `name=value` per line."""

from __future__ import annotations

from testbed.bus.messages import GuestSpec


def task_fields(spec: GuestSpec) -> list[tuple[str, object]]:
    """Return the fields of a guest's task, in their order."""
    program = spec.program
    return [
        ("guest", spec.guest), ("run", spec.run), ("job", spec.job), ("task", spec.task),
        ("memory_mib", spec.memory_mib), ("name", program.name), ("work_units", program.work_units),
        ("units_per_iteration", program.units_per_iteration), ("seed", program.seed), ("workers", program.workers),
        ("rank", program.rank), ("ranks", program.ranks), ("topology", program.topology),
        ("imbalance", program.imbalance), ("message_bytes", program.message_bytes),
        ("touched_frac", repr(program.touched_frac)), ("pace_ns", program.pace_ns), ("profile", program.profile),
    ]  # fmt: skip
