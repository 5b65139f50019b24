"""The figures that checks measure: their units, the direction that is better, and their default tolerances.

A new reference is written with these tolerances. The lab's owner may change them in the file of references.
"""

from __future__ import annotations

from dataclasses import dataclass

from testbed.study.checks.judge import Better, Reference


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure; `lower_frac`, `upper_frac` and `slack` are as in `Reference`."""

    name: str
    unit: str
    better: Better
    about: str
    lower_frac: float = 0.25
    upper_frac: float = 0.25
    slack: float = 0.0

    def reference(self, value: float) -> Reference:
        """Return a reference of a value with the figure's default tolerances."""
        return Reference(value, self.lower_frac, self.upper_frac, self.unit, self.better, self.slack)


_UNITS = (
    ("_mib_per_s", "MiB/s", Better.HIGHER), ("_per_cpu_s", "units/CPU s", Better.HIGHER),
    ("_per_s", "1/s", Better.HIGHER), ("_points", "points", Better.LOWER), ("_mib", "MiB", Better.LOWER),
    ("_s", "s", Better.LOWER), ("_frac", "", Better.HIGHER),
)  # fmt: skip

_KNOWN = (
    Figure("save_mib_per_s", "MiB/s", Better.HIGHER, "image written and durable, from the order on", 0.3, 0.5),
    Figure("restore_mib_per_s", "MiB/s", Better.HIGHER, "image to first progress of its task", 0.3, 0.5),
    Figure("start_s", "s", Better.LOWER, "order to first progress of a new guest", 0.5, 0.3, 0.1),
    Figure("cap_error_points", "points", Better.LOWER, "CPU used away from the cap, of a core", 1.0, 0.0, 1.5),
    Figure("cap_response_s", "s", Better.LOWER, "use beyond a cap after it was cut, at the old rate", 1.0, 0.5, 0.1),
    Figure("units_per_cpu_s", "units/CPU s", Better.HIGHER, "work done in a second of CPU time", 0.1, 0.1),
)
KNOWN = {figure.name: figure for figure in _KNOWN}


def find_figure(name: str) -> Figure:
    """Return a figure by its name; an unknown figure gets its unit from the end of its name."""
    if name in KNOWN:
        return KNOWN[name]
    for ending, unit, better in _UNITS:
        if name.endswith(ending):
            return Figure(name, unit, better, "")
    raise ValueError(
        f"figure {name!r}: expected one of {', '.join(KNOWN)}, or a name that ends in a unit: "
        f"{', '.join(ending for ending, *_ in _UNITS)}"
    )
