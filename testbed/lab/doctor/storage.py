"""Checks of the disk for saved guests: its durable write rate and its free space."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from testbed.lab.doctor.finding import Finding

_MIB = 64
_SLOW_MIB_PER_S = 50.0
_LEAST_FREE_MIB = 4096


def storage(folder: Path) -> Iterator[Finding]:
    """Write and fsync a file in a folder, and check the free space there."""
    try:
        rate = _write_rate(folder)
    except OSError as error:
        yield Finding("storage", "error", f"{folder}: cannot be written: {error.strerror}", f"mkdir -p {folder}")
        return
    values = {"mib_per_s": round(rate, 1)}
    if rate < _SLOW_MIB_PER_S:
        yield Finding(
            "storage rate", "warning", f"{folder}: {rate:.0f} MiB/s written durably",
            "keep images on a faster disk: node-agent --image-dir", values,
        )  # fmt: skip
    else:
        yield Finding("storage rate", "ok", f"{folder}: {rate:.0f} MiB/s written durably", values=values)
    free_mib = shutil.disk_usage(folder).free >> 20
    scarce = free_mib < _LEAST_FREE_MIB
    yield Finding(
        "storage room", "warning" if scarce else "ok", f"{folder}: {free_mib} MiB free",
        "saved guests need twice the memory of a node: free space, or choose another folder" if scarce else "",
        {"free_mib": free_mib},
    )  # fmt: skip


def _write_rate(folder: Path) -> float:
    block = os.urandom(1 << 20)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".dfrs-doctor-") as file:
        begin_s = time.monotonic()
        for _ in range(_MIB):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return _MIB / (time.monotonic() - begin_s)
