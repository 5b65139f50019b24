"""Conditions on results, such as `load >= 0.7` or `traces == scaled`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from testbed.errors import nearest

_NUMBERS = ("load", "period_s", "penalty_s", "seed", "week", "nodes", "jobs")
_TEXTS = ("traces", "policy", "overheads")
COLUMNS = _NUMBERS + _TEXTS
_COMPARE: dict[str, Callable[[object, object], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,  # type: ignore[dict-item]  # order comparisons are between numbers only
    "<=": operator.le,  # type: ignore[dict-item]  # as above
    ">": operator.gt,  # type: ignore[dict-item]  # as above
    "<": operator.lt,  # type: ignore[dict-item]  # as above
}
_FORM = re.compile(r"\s*(?P<column>\w+)\s*(?P<compare>==|!=|>=|<=|>|<)\s*(?P<value>\S.*?)\s*")


@dataclass(frozen=True, slots=True)
class Condition:
    """`column` compared with `value`: a number for load, period_s and the like, a text for traces and policy."""

    column: str
    compare: str
    value: float | str

    @classmethod
    def parse(cls, text: object) -> Condition:
        """Return the condition of a text such as `load >= 0.7`; raises ValueError with the expected form."""
        if isinstance(text, Condition):
            return text
        match = _FORM.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ValueError("a condition such as load >= 0.7 or traces == scaled")
        column, compare, value = match.group("column", "compare", "value")
        if column not in COLUMNS:
            raise ValueError(f"a condition on {', '.join(COLUMNS)}{nearest(column, COLUMNS)}")
        if column in _TEXTS:
            if compare not in ("==", "!="):
                raise ValueError(f"== or != for {column}, which is a text")
            return cls(column, compare, value)
        try:
            return cls(column, compare, float(value))
        except ValueError:
            raise ValueError(f"a number after {column} {compare}") from None

    def holds(self, row: Mapping[str, object]) -> bool:
        """Whether a row of the results meets the condition.

        A row without a value does not, except for the period: a policy without a period is the same at all periods.
        """
        found = row[self.column]
        if found is None:
            return self.column == "period_s"
        return _COMPARE[self.compare](found, self.value)
