"""Removes labs in a box that were never completed, or that a restart of the machine ended."""

from __future__ import annotations

import os
from collections.abc import Callable

from testbed.errors import TestbedError, UserError
from testbed.lab.cleanup.leftover import Leftover


def clean_labs(*, dry_run: bool, say: Callable[[str], None]) -> list[Leftover]:
    """Remove such labs; a lab that was up stays, complete or not. Without root rights no lab is checked.

    A lab without a visible state is removed only if none of its processes runs, as processes with another root
    directory may have its state.
    """
    if os.geteuid() != 0:
        return []
    from testbed.lab.box.down import list_lab, remove_lab  # noqa: PLC0415  # heavy where there is none
    from testbed.lab.box.state import find, only_command  # noqa: PLC0415  # needed by root alone, as the one above
    from testbed.lab.box.sweep import known_labs, processes_of  # noqa: PLC0415  # needed by root alone, as well

    found: list[Leftover] = []
    for name in known_labs():
        try:
            state = find(name)
        except TestbedError:
            state = None
        if (state is None and processes_of(name)) or (state is not None and state.phase == "up"):
            continue
        there = [Leftover(f"lab {name}", what) for what in list_lab(name)]
        if dry_run:
            found += there
            continue
        try:
            with only_command(wait_s=0.0):
                failures = remove_lab(name, say).failures
        except UserError as error:
            found += [Leftover(each.of, each.what, str(error)) for each in there]
        else:
            found += (
                there if not failures else [Leftover(f"lab {name}", why, "could not be removed") for why in failures]
            )
    return found
