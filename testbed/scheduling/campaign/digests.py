"""Digests of what determines a result."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from functools import cache
from pathlib import Path

import testbed
from testbed.scheduling.simulation.overheads import Overheads

# All sources that can change a result.
_ROOMS = ("scheduling/bound", "scheduling/policies", "scheduling/simulation", "scheduling/workload")
_FILES = ("scheduling/metrics.py", "scheduling/places.py")


def digest(*parts: object) -> str:
    """Return a digest, 32 hexadecimal digits, of numbers and texts, in lists of any depth."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@cache
def code_version() -> str:
    """Return the version of the project, and a digest of the sources that simulate and measure."""
    root = Path(testbed.__file__).parent
    found = hashlib.blake2b(digest_size=8)
    files = [root / name for name in _FILES]
    for source in sorted([*files, *(file for room in _ROOMS for file in (root / room).rglob("*.py"))]):
        content = source.read_bytes()
        found.update(f"{source.relative_to(root).as_posix()} {len(content)}\n".encode())
        found.update(content)
    return f"{testbed.__version__}+{found.hexdigest()}"


def file_digest(path: Path) -> str:
    """Return a digest of the bytes of a file."""
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def overheads_digest(overheads: Overheads) -> str:
    """Return a digest of the figures of a model; its name does not count."""
    penalties, beyond = overheads.table(1.0)
    curves = (beyond.yields, beyond.serial_rates, beyond.parallel_rates)
    arrays = penalties[:4] + ((beyond.start_s, beyond.save_s, *curves) if beyond.any else ())
    more = [[kind, seconds] for kind, seconds in asdict(overheads.parallel).items() if seconds]
    return digest(*[array.tolist() for array in arrays], *([beyond.per_node] if beyond.any else []), *more)
