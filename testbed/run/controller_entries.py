"""The entries of the loss of a controller."""

from __future__ import annotations

from typing import Annotated

from testbed.run.entry import Entry, about


class Resumed(Entry, frozen=True, kw_only=True, tag="resumed"):
    """Another controller goes on with the run, whose controller was lost. Not before version 5.

    Trace time stands still from the last sign of life of the lost controller until the entry `recovered`.
    """

    since_s: Annotated[float, about("the last sign of life of the lost controller, in wall seconds of the run")]
    by: Annotated[str, about("who resumed it: user, machine and process")]
    torn_bytes: Annotated[int, about("bytes of last lines that were cut off, and were removed")] = 0


class Recovered(Entry, frozen=True, kw_only=True, tag="recovered"):
    """The nodes were asked for their guests and images, and trace time goes on. Not before version 5."""

    blind_s: Annotated[float, about("time for which the run was without a controller")]
    adopted: Annotated[tuple[int, ...], about("jobs whose guests went on meanwhile, by id")] = ()
    carried_on: Annotated[
        tuple[int, ...], about("numbers of the operations that were under way, and are carried on")
    ] = ()
