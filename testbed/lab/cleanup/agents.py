"""What killed agents left: guests and whatever else their driver knows, images, folders, control groups."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterable
from pathlib import Path

from node_agent.claims import Claim, claims
from node_agent.drivers.caps.left import left_groups, remove_group
from node_agent.drivers.make import make_driver
from node_agent.images import ImageStore
from node_agent.stores import sweep, tmpfs
from testbed.errors import TestbedError
from testbed.lab.cleanup.held import held_by
from testbed.lab.cleanup.leftover import Leftover

_DRIVER_S = 120.0


async def clean_agents(*, dry_run: bool, force: bool) -> list[Leftover]:
    """Remove what this user's killed agents left, as their claims tell; with `dry_run` only look.

    With `force` also in labs of which somebody holds the lease, or nobody can tell.
    """
    every = claims()
    alive = [claim for _, claim in every if claim.alive]
    found: list[Leftover] = []
    for path, claim in every:
        if claim.alive:
            continue
        if any(other.state_dir == claim.state_dir for other in alive):  # its successor has removed all of it
            if not dry_run:
                path.unlink(missing_ok=True)
            continue
        kept = _namesake(claim, alive) or ("" if force else await held_by(claim))
        there, failed = await _clean(claim, dry_run=dry_run or bool(kept))
        found += [Leftover(f"agent {claim.name}", what, kept) for what in there]
        found += [Leftover(f"agent {claim.name}", what, why) for what, why in failed]
        if not (dry_run or kept or failed):
            path.unlink(missing_ok=True)
    return found


def _namesake(claim: Claim, alive: Iterable[Claim]) -> str:
    """Say which live agent has guests that could be taken for those of this one; empty if none has."""
    for other in alive:
        if (other.node, other.driver, other.options) == (claim.node, claim.driver, claim.options):
            return f"agent {other.name} (process {other.pid}) has a node of the same name: end it first"
    return ""


async def _clean(claim: Claim, *, dry_run: bool) -> tuple[list[str], list[tuple[str, str]]]:
    """Return what is left of an agent and went, and what could not be removed, with the reason."""
    there: list[str] = []
    failed: list[tuple[str, str]] = []
    try:
        async with asyncio.timeout(_DRIVER_S):
            there += await make_driver(claim.driver, claim.options).sweep(claim.budget, dry_run=dry_run)
    except (TestbedError, TimeoutError) as error:
        failed.append((f"guests, if there are any (driver {claim.driver})", str(error) or "no answer"))
    for group in left_groups(claim.node, claim.pid):
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
    return there, failed


def _files(claim: Claim) -> list[Path]:
    """Return its folders if nobody is to use them again, else the images in them."""
    images = Path(claim.image_dir)
    if claim.ephemeral:
        return [path for path in (Path(claim.state_dir), images) if path.is_dir() and not path.is_symlink()]
    return ImageStore(images).all() if images.is_dir() else []


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
        with contextlib.suppress(OSError):
            path.parent.rmdir()  # where nothing else is in it
    else:
        path.unlink(missing_ok=True)
