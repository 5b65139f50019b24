"""Parser of the texts that name overhead models, on the command line and in campaigns.

* `constant:300`: 300 s for every resume and migration [RR 5.1];
* `linear:fixed_s=2,gb_per_s=0.5,total_gb_per_s=10`: see `testbed.scheduling.simulation.overheads.linear`;
* a file such as `calibration.toml`: see `testbed.scheduling.simulation.overheads_file`;
* `calibration.toml#constant`: the mean penalty of such a file, for every resume and migration;
* `calibration.toml#extrapolate`: the same as the file, for tasks of any memory;
* `calibration.toml#save-restore`, `#live`: the same, with migrations by this mechanism;
* `calibration.toml#cheaper`: the same, with the cheaper mechanism at each point;
* `calibration.toml#cheaper#extrapolate`: such a model for tasks of any memory.

A plug-in is an entry point of the group `testbed.overheads`: a callable that gets the text after the colon (empty
without one), and returns an `Overheads`; it raises `UserError` for an invalid text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import entry_points
from math import inf
from pathlib import Path

from testbed.errors import UserError, nearest
from testbed.scheduling.simulation.overheads import Overheads, constant, linear

PLUGIN_GROUP = "testbed.overheads"
EXTRAPOLATE, CHEAPER = "extrapolate", "cheaper"
_WAYS = ("save-restore", "live", CHEAPER)
_KEYS = ("constant", EXTRAPOLATE, *_WAYS)  # after the # of a file


def parse_overheads(text: str) -> Overheads:
    """Return the model of a text: a TOML file, its mean penalty, or `name` or `name:arguments` of a maker or plug-in.

    Raises UserError for an unknown name, with the nearest known ones, and for invalid arguments.
    """
    file, key = split_file(text)
    if file:
        if key.removesuffix(f"#{EXTRAPOLATE}") not in ("", *_KEYS):
            raise UserError(
                f"overheads {text}: expected {', '.join(f'#{each}' for each in _KEYS)} or nothing after the file"
                f"{nearest(key, _KEYS)}"
            )
        return _of_file(text, file, key)
    name, _, arguments = text.partition(":")
    plugins = {point.name: point for point in entry_points(group=PLUGIN_GROUP)}
    if name in _MAKERS:
        return _MAKERS[name](arguments)
    if name in plugins:
        made: Overheads = plugins[name].load()(arguments)
        return made
    known = [*_MAKERS, *sorted(plugins)]
    raise UserError(f"no overheads {name!r}: expected a .toml file or one of {', '.join(known)}{nearest(name, known)}")


def split_file(text: str) -> tuple[str, str]:
    """Return the file of a model and what follows it after a #; two empty texts for a model without a file."""
    end = text.lower().rfind(".toml") + len(".toml")
    if end < len(".toml") or (end < len(text) and text[end] != "#"):
        return "", ""
    return text[:end], text[end + 1 :]


def _of_file(text: str, file: str, key: str) -> Overheads:
    from testbed.scheduling.simulation.overheads_file import load_cheaper, load_overheads, load_ways  # noqa: PLC0415  # pydantic is slow to import

    way = key.removesuffix(f"#{EXTRAPOLATE}")
    if way == CHEAPER:
        found = load_cheaper(Path(file))
    elif way in _WAYS:
        found = load_ways(Path(file))[way]
    else:
        found = load_overheads(Path(file))
    if way == "constant":
        found = constant(found.mean_penalty_s)
    most_memory_gb = inf if key.endswith(EXTRAPOLATE) else found.most_memory_gb
    return replace(found, name=text, wall_clock=True, most_memory_gb=most_memory_gb)


def _constant(text: str) -> Overheads:
    try:
        return constant(float(text))
    except ValueError:
        raise UserError(f"overheads constant:{text}: expected seconds, such as constant:300") from None


def _linear(text: str) -> Overheads:
    known = ("fixed_s", "gb_per_s", "total_gb_per_s")
    values: dict[str, float] = {}
    for part in text.split(","):
        key, _, number = part.partition("=")
        if key not in known:
            raise UserError(f"overheads linear:{text}: no {key!r}; expected {', '.join(known)}{nearest(key, known)}")
        try:
            values[key] = float(number)
        except ValueError:
            raise UserError(f"overheads linear:{text}: {key} = {number!r}: expected a number") from None
    if missing := [key for key in known[:2] if key not in values]:
        raise UserError(f"overheads linear:{text}: {' and '.join(missing)} missing")
    return linear(**values)


_MAKERS: dict[str, Callable[[str], Overheads]] = {"constant": _constant, "linear": _linear}
