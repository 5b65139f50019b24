"""The types of conditions and observations: numbers and texts by name, as in a line of the trials' journal."""

from __future__ import annotations

from collections.abc import Mapping

Value = float | int | str
Condition = Mapping[str, Value]
Observation = dict[str, Value]
