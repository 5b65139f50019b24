"""Leftovers of dead runs on this machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

from testbed.lab.doctor.finding import Finding

_TOLD = 3


def agents() -> Iterator[Finding]:
    """Report leftovers of killed agents of this user."""
    from testbed.lab.cleanup.agents import clean_agents  # noqa: PLC0415  # its bus is heavy

    found = asyncio.run(clean_agents(dry_run=True, force=False))
    if found:
        words = ", ".join(f"{each.what} of {each.of}" for each in found[:_TOLD])
        more = f" and {len(found) - _TOLD} more" if len(found) > _TOLD else ""
        yield Finding("leftovers of agents", "warning", words + more, "testbed cleanup", {"count": len(found)})
    else:
        yield Finding("leftovers of agents", "ok", "none")


def labs() -> Iterator[Finding]:
    """Report incomplete labs in a box."""
    from testbed.lab.box.status import report  # noqa: PLC0415  # heavy where there is none
    from testbed.lab.box.sweep import known_labs  # noqa: PLC0415  # as above

    if os.geteuid() != 0:
        yield Finding("labs in a box", "note", "not checked: needs root")
        return
    names = known_labs()
    for name in names:
        missing = report(name).missing
        if missing:
            yield Finding(
                "labs in a box", "warning", f"lab {name} lacks {', '.join(missing)}", f"testbed lab down {name}"
            )
        else:
            yield Finding("labs in a box", "ok", f"lab {name} is complete")
    if not names:
        yield Finding("labs in a box", "ok", "none")
