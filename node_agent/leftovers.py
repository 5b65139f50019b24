"""Leftovers of killed agents: guests and other resources of their driver, images, folders, control groups.

`python -m node_agent.leftovers` removes them for a cleanup: it reads one `Sweep` per line, and answers each with a
`Swept`.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
from pathlib import Path

import msgspec

from node_agent import kept_images
from node_agent.claims import budget_of
from node_agent.drivers.caps.left import left_groups, remove_group
from node_agent.drivers.make import make_driver
from node_agent.drivers.procs.records import RECORDS, recorded
from node_agent.images import ImageStore
from node_agent.stores import sweep, tmpfs
from testbed.errors import TestbedError
from testbed.host.agents import Claim, Sweep, Swept

_DRIVER_S = 120.0


async def remove(claim: Claim, *, dry_run: bool) -> Swept:
    """Remove the leftovers of a dead agent; with `dry_run` only list them."""
    owners = {claim.pid, *recorded(Path(claim.state_dir) / RECORDS)}  # groups are named after agents, or their keepers
    there: list[str] = []
    failed: list[tuple[str, str]] = []
    try:
        async with asyncio.timeout(_DRIVER_S):
            there += await make_driver(claim.driver, claim.options).sweep(budget_of(claim), dry_run=dry_run)
    except (TestbedError, TimeoutError) as error:
        failed.append((f"guests, if there are any (driver {claim.driver})", str(error) or "no answer"))
    for group in sorted(found for pid in owners for found in left_groups(claim.node, pid)):
        if dry_run or remove_group(group):
            there.append(f"control group {group}")
        else:
            failed.append((f"control group {group}", "a process is in it"))
    base = tmpfs()
    there += [f"folder {path}" for path in sweep(base, claim.node, dry_run=dry_run)] if base is not None else []
    for path in _files(claim):
        try:
            kind = "folder" if path.is_dir() else "image"
            if not dry_run:
                _remove(path)
            there.append(f"{kind} {path}")
        except OSError as error:
            failed.append((str(path), error.strerror or str(error)))
    if not (dry_run or claim.ephemeral):
        _remove_notes(Path(claim.image_dir))
    return Swept(there, failed)


def _files(claim: Claim) -> list[Path]:
    """Return the folders of an ephemeral agent, which are not used again, else only the images."""
    images = Path(claim.image_dir)
    if claim.ephemeral:
        return [path for path in (Path(claim.state_dir), images) if path.is_dir() and not path.is_symlink()]
    return ImageStore(images).all() if images.is_dir() else []


def _remove_notes(folder: Path) -> None:
    """Remove the notes of images and of their holder, which are void without the images."""
    with contextlib.suppress(OSError):
        if folder.is_dir():
            ImageStore(folder).clear()
        (folder / kept_images.FILE).unlink(missing_ok=True)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
        with contextlib.suppress(OSError):
            path.parent.rmdir()  # if it is empty
    else:
        path.unlink(missing_ok=True)


def main() -> None:
    """Answer each line of standard input, until it ends."""
    for line in sys.stdin.buffer:
        order = msgspec.json.decode(line, type=Sweep)
        answer = asyncio.run(remove(order.claim, dry_run=order.dry_run))
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
