"""Checks of the results of experiments; an error is one line with the experiment, the value, and the expected value.

An experiment may be a plug-in. Its results go into journals, files, tables and pages. Therefore every number must be
finite (an interval may be absent or open), every name must be well-formed, and every unit must agree with its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import isfinite, isnan
from typing import get_args

from testbed.errors import UserError, shown
from testbed.study.calibration.model import Assumption, Outlier, Quantity, Verdict
from testbed.study.calibration.values import Observation, Value

NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_NAME_WORDS = "small letters, digits and '_'"
_MOST_UNIT = 20
# longer endings come first, because `_mib_per_s` also ends in `_s`
_UNITS = {
    "_mib_per_s": "MiB/s", "_gb_per_s": "GB/s", "_per_s": "1/s", "_points": "points", "_cores": "cores",
    "_frac": "1", "_ratio": "1", "_mib": "MiB", "_gb": "GB", "_s": "s",
}  # fmt: skip


def checked_values(values: object, of: str) -> Observation:
    """Return a condition or an observation with plain Python numbers instead of numpy's, or raise `UserError`.

    `of` names the owner of the values; error messages begin with it.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"{of}: {shown(values)}: expected a table of numbers and texts by name")
    found: Observation = {}
    for name, value in values.items():
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise UserError(f"{of}: name {shown(name)}: expected {_NAME_WORDS}")
        found[name] = _plain(value, f"{of}: {name}")
    return found


def checked_observations(experiment: str, found: object) -> tuple[Observation, ...]:
    """Return the observations of a trial, or raise `UserError`."""
    if not isinstance(found, list | tuple):
        raise UserError(f"experiment {experiment}: {shown(found)}: expected a list of observations")
    return tuple(checked_values(one, f"experiment {experiment}: observation") for one in found)


def _plain(value: object, of: str) -> Value:
    plain = value.item() if hasattr(value, "item") and callable(value.item) else value  # a scalar of numpy
    if isinstance(plain, str) or (isinstance(plain, int) and not isinstance(plain, bool)):
        return plain
    if isinstance(plain, float) and isfinite(plain):
        return plain
    raise UserError(f"{of} = {shown(plain)}: expected a finite number or a text")


def checked_quantities(experiment: str, quantities: Iterable[object], taken: Mapping[str, str]) -> list[Quantity]:
    """Return quantities with plain numbers, or raise `UserError` for the first invalid one.

    `taken` maps the names of earlier quantities to their experiments.
    """
    found: dict[tuple[object, ...], Quantity] = {}
    for one in quantities:
        if not isinstance(one, Quantity):
            raise UserError(f"experiment {experiment}: {shown(one)}: expected a Quantity")
        of = f"experiment {experiment}, quantity {one.name}"
        if not isinstance(one.name, str) or not NAME.fullmatch(one.name):
            raise UserError(f"experiment {experiment}: quantity {shown(one.name)}: expected a name of {_NAME_WORDS}")
        if one.name in taken:
            raise UserError(f"{of}: expected another name: experiment {taken[one.name]} has one of this name")
        _check_unit(one, of)
        _check_numbers(one, of)
        condition = checked_values(one.condition, f"{of}: condition")
        if (key := (one.name, *sorted(condition.items()))) in found:
            raise UserError(f"{of}: condition {condition}: expected each condition once")
        found[key] = replace(
            one, value=float(one.value), low=float(one.low), high=float(one.high), goodness=float(one.goodness),
            condition=condition,
        )  # fmt: skip
    return list(found.values())


def _check_unit(one: Quantity, of: str) -> None:
    if not isinstance(one.unit, str) or not 0 < len(one.unit.strip()) == len(one.unit) <= _MOST_UNIT:
        raise UserError(f"{of}: unit {shown(one.unit)}: expected 1 to {_MOST_UNIT} characters, '1' for a plain ratio")
    ending = next((ending for ending in _UNITS if one.name.endswith(ending)), "")
    if ending and _UNITS[ending] != one.unit:
        raise UserError(f"{of}: unit {one.unit!r}: expected {_UNITS[ending]!r} of a name that ends in {ending}")
    fitting = [ending for ending, unit in _UNITS.items() if unit == one.unit]
    if not ending and fitting and one.unit != "1":
        raise UserError(f"{of}: unit {one.unit!r}: expected a name that ends in {fitting[0]}")


def _check_numbers(one: Quantity, of: str) -> None:
    for name in ("value", "low", "high", "goodness"):
        if not isinstance(getattr(one, name), float | int):
            raise UserError(f"{of}: {name} {shown(getattr(one, name))}: expected a number")
    if not isfinite(one.value):
        raise UserError(f"{of}: value {one.value}: expected a finite number")
    if isnan(one.low) != isnan(one.high) or one.low > one.high:
        raise UserError(f"{of}: interval {one.low:g} to {one.high:g}: expected low <= high, or NaN for both")
    if not all(isinstance(count, int) for count in (one.n, one.observations, one.outliers)):
        raise UserError(f"{of}: {one.n!r} trials, {one.observations!r} observations: expected whole numbers")
    if one.n < 1 or one.observations < one.n:
        expected = "at least one trial, and an observation of each"
        raise UserError(f"{of}: {one.n} trials, {one.observations} observations: expected {expected}")


def checked_outliers(experiment: str, outliers: Iterable[object]) -> None:
    """Raise `UserError` for an invalid outlier."""
    for one in outliers:
        if not isinstance(one, Outlier) or not NAME.fullmatch(one.quantity):
            raise UserError(f"experiment {experiment}: {shown(one)}: expected an Outlier")
        if not all(map(isfinite, (one.value, one.expected, one.deviations))):
            raise UserError(f"experiment {experiment}, quantity {one.quantity}: {shown(one)}: expected finite numbers")


def checked_assumptions(experiment: str, found: object, taken: Mapping[str, str]) -> dict[str, Assumption]:
    """Return verdicts by the names of their assumptions, or raise `UserError`; `taken` as in `checked_quantities`."""
    if not isinstance(found, Mapping):
        raise UserError(f"experiment {experiment}: {shown(found)}: expected assumptions by name")
    for name, one in found.items():
        of = f"experiment {experiment}, assumption {name}"
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise UserError(f"experiment {experiment}: assumption {shown(name)}: expected a name of {_NAME_WORDS}")
        if name in taken:
            raise UserError(f"{of}: expected another name: experiment {taken[name]} has one of this name")
        if not isinstance(one, Assumption):
            raise UserError(f"{of}: {shown(one)}: expected an Assumption")
        if one.verdict not in get_args(Verdict):
            raise UserError(f"{of}: verdict {shown(one.verdict)}: expected one of {', '.join(get_args(Verdict))}")
        texts = (one.statement, one.found, one.source)
        if not all(isinstance(words, str) for words in texts) or not one.statement:
            raise UserError(f"{of}: {shown(texts)}: expected texts, and a statement of what is assumed")
        if not isinstance(one.within_frac, float | int):
            raise UserError(f"{of}: within_frac {shown(one.within_frac)}: expected a number, NaN if unknown")
    return dict(found)
