"""Malformed records: valid ones with some of their values, names and bytes changed. Deterministic."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

_NOTHING = object()
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**40, -(2**63), 0.5, -0.0, 1e-300, 1e308, -1e308, "", "x", "0",
    "../../outside", "/etc/passwd", "a/b", "..", ".", "-rf", "$(id)", "a\x00b", "é" * 200, "A" * 5000, "\u202e", "%n",
    [], {}, [[]], [None] * 50, {"": ""}, {"a": {"b": {"c": []}}}, ["../x"], [1e308, -1], {"x": 1e308},
)  # fmt: skip


def _places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value below the root."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from _places(value, (*path, key))


def _change(tree: Any, draw: random.Random, kept: frozenset[str]) -> None:
    places = [path for path in _places(tree) if path[-1] not in kept]
    path = draw.choice(places)
    parent = tree
    for key in path[:-1]:
        parent = parent[key]
    value = copy.deepcopy(draw.choice(_VALUES)) if draw.random() < 0.95 else _NOTHING
    if value is _NOTHING:
        del parent[path[-1]]
    elif isinstance(parent, dict) and draw.random() < 0.1:
        parent[f"{path[-1]}2"] = value
    else:
        parent[path[-1]] = value


def _scramble(payload: bytes, draw: random.Random) -> bytes:
    scrambled = bytearray(payload)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(scrambled) or 1)
        kind = draw.randrange(4)
        if kind == 0:
            scrambled[at : at + 1] = draw.randbytes(1)
        elif kind == 1:
            del scrambled[at : at + draw.randint(1, 20)]
        elif kind == 2:
            scrambled[at:at] = draw.randbytes(draw.randint(1, 20))
        else:
            scrambled = scrambled[at:] + scrambled[:at]
    return bytes(scrambled)


def nonsense(seeds: Sequence[bytes], count: int, seed: int, keep: Sequence[str] = ()) -> Iterator[bytes]:
    """Yield payloads made from valid ones: nine of ten are still JSON. The values of names in `keep` do not change."""
    draw, kept = random.Random(seed), frozenset(keep)  # noqa: S311  # no secret
    for _ in range(count):
        payload = draw.choice(seeds)
        if draw.random() < 0.1:
            yield _scramble(payload, draw)
            continue
        tree = json.loads(payload)
        for _ in range(draw.choice((1, 1, 2, 4))):
            _change(tree, draw, kept)
        text = json.dumps(tree)
        if draw.random() < 0.05:
            text = text.replace("1e+308", draw.choice(("NaN", "Infinity", "-Infinity", "1e999")))
        yield text.encode()
