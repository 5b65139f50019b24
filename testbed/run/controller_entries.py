"""Journal entries about the loss of a controller and the recovery by its successor."""

from __future__ import annotations

from typing import Annotated

from testbed.run.entry import Entry, about


class Resumed(Entry, frozen=True, kw_only=True, tag="resumed"):
    """Another controller resumes the run, whose controller was lost. Not before version 5.

    Trace time stands still from the last sign of life of the lost controller until the entry `recovered`.
    """

    since_s: Annotated[float, about("last sign of life of the lost controller, in wall seconds of the run")]
    by: Annotated[str, about("user, machine and process of the new controller")]
    torn_bytes: Annotated[int, about("bytes of incomplete last lines, which were removed")] = 0


class Recovered(Entry, frozen=True, kw_only=True, tag="recovered"):
    """The nodes have reported their guests and images, and trace time continues. Not before version 5."""

    blind_s: Annotated[float, about("time for which the run was without a controller")]
    adopted: Annotated[tuple[int, ...], about("ids of the jobs whose guests continued to run")] = ()
    carried_on: Annotated[tuple[int, ...], about("numbers of the operations that were in progress, and continue")] = ()
