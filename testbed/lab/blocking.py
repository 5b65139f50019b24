"""The blocking twins of `Lab` and `LabJob`. Their types are in blocking.pyi, which `scripts/public-api` generates."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager

from testbed.lab.job import LabJob
from testbed.lab.lab import Lab
from testbed.lab.portal import Portal
from testbed.lab.twins import Twin, derive

BlockingLabJob = derive("BlockingLabJob", LabJob)
BlockingLab = derive("BlockingLab", Lab, {LabJob: BlockingLabJob})


@contextlib.contextmanager
def enter_blocking(opening: AbstractAsyncContextManager[Lab]) -> Iterator[Twin]:
    """Open a lab for the block, in an event loop of its own in another thread."""
    with Portal() as portal, portal.within(opening) as lab:
        yield BlockingLab(portal, lab)
