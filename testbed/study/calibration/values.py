"""The values of conditions and observations: numbers and texts by name, as a line of a journal holds them."""

from __future__ import annotations

from collections.abc import Mapping

Value = float | int | str
Condition = Mapping[str, Value]
Observation = dict[str, Value]
