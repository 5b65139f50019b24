"""The file of references: the expected value of each figure per machine, with its earlier values.

```toml
version = 1

["machine"."Xeon ... | 1 of 2 cores | Linux 6.18 | libvirt tcg | vcpu_quota | libvirt 9.0.0 qemu 7.2.0 | ext4"]
[machine."...".save_mib_per_s]
value = 412.0
lower_frac = 0.3   # a regression lies below value * (1 - lower_frac) - slack
upper_frac = 0.5
slack = 0.0
unit = "MiB/s"
better = "higher"
condition = "128 MiB"
guests = 5
written_utc = "2026-11-21T14:00:00Z"
testbed = "0.1.0"
history = [{ value = 398.2, written_utc = "...", testbed = "0.1.0" }]
```
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from testbed.errors import UserError
from testbed.host.locks import lock
from testbed.scheduling.workload.files import write_text
from testbed.study.checks.judge import Better, Reference
from testbed.toml_files import first_mistake, read_toml

MOST_HISTORY = 20
_Finite = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Earlier(_Entry):
    """An earlier value of a reference."""

    value: _Finite
    written_utc: str = ""
    testbed: str = ""


class Stored(_Entry):
    """The reference of one figure on one machine; `value` and `slack` are in `unit`, `guests` is a number of guests."""

    value: _Finite
    lower_frac: _Finite
    upper_frac: _Finite
    unit: str
    better: Better
    slack: _Finite = 0.0
    condition: str = ""
    guests: Annotated[int, Field(ge=0)] = 0
    written_utc: str = ""
    testbed: str = ""
    history: tuple[Earlier, ...] = ()

    @property
    def reference(self) -> Reference:
        """The band that measured runs are compared with."""
        return Reference(self.value, self.lower_frac, self.upper_frac, self.unit, self.better, self.slack)


class _File(_Entry):
    version: Literal[1]
    machine: dict[str, dict[str, Stored]] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class References:
    """All references of a file, by machine key and figure."""

    machines: Mapping[str, Mapping[str, Stored]] = field(default_factory=dict)

    def find(self, machine: str, figure: str, condition: str) -> Stored | None:
        """Return the reference of a figure on a machine, if it was measured under the same condition."""
        found = self.machines.get(machine, {}).get(figure)
        return found if found is not None and found.condition == condition else None

    def why_none(self, machine: str, figure: str, condition: str) -> str:
        """Return the reason why `find` returned None."""
        if machine not in self.machines:
            return f"none for this machine ({machine})"
        found = self.machines[machine].get(figure)
        if found is None:
            return f"none of {figure} for this machine"
        return f"this machine has one for {found.condition or 'no stated condition'}, not for {condition}"

    def updated(self, machine: str, figure: str, stored: Stored) -> References:
        """Return the references with a new value of a figure.

        An existing reference in the same unit keeps its tolerances. Its value becomes history if it was measured under
        the same condition.
        """
        entries = dict(self.machines.get(machine, {}))
        old = entries.get(figure)
        if old is not None and (old.unit, old.better) == (stored.unit, stored.better):
            before = Earlier(value=old.value, written_utc=old.written_utc, testbed=old.testbed)
            kept = {"history": (*old.history, before)[-MOST_HISTORY:]} if old.condition == stored.condition else {}
            stored = stored.model_copy(
                update={"lower_frac": old.lower_frac, "upper_frac": old.upper_frac, "slack": old.slack, **kept}
            )
        return replace(self, machines={**self.machines, machine: {**entries, figure: stored}})


def load_references(path: Path) -> References:
    """Read a file of references; a missing file gives none. Raises `UserError` or `InputError`."""
    if not path.exists():
        return References()
    try:
        return References(_File.model_validate(read_toml(path, "references")).machine)
    except ValidationError as error:
        raise first_mistake(path, _File, error) from None


def save_references(path: Path, references: References) -> None:
    """Write a file of references atomically; machines and figures are sorted by name."""
    lines = ["# Expected values of figures, by machine: see `testbed check --help`.", "version = 1"]
    for machine, entries in sorted(references.machines.items()):
        for figure, stored in sorted(entries.items()):
            lines += ["", f"[machine.{_text(machine)}.{_text(figure)}]"]
            lines += [f"{name} = {_value(value)}" for name, value in stored.model_dump(mode="json").items()]
    write_text(path, "\n".join(lines) + "\n")


def update_file(path: Path, machine: str, figure: str, stored: Stored) -> None:
    """Write one reference into a file under a lock, so that updates by other processes are not lost."""
    folder = path.absolute().parent
    try:
        descriptor = lock(folder, folder=True)  # the lock leaves no file
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror}: expected a folder for the references") from error
    try:
        save_references(path, load_references(path).updated(machine, figure, stored))
    finally:
        os.close(descriptor)


def _value(value: object) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_value(item)}" for name, item in value.items()) + " }"
    return repr(value)  # pydantic has checked that all numbers are finite


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
