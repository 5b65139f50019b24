"""Retention of a node's images: each is kept for as long as the lease under which it was saved is in force."""

from __future__ import annotations

import contextlib
from pathlib import Path

from node_agent.stores import ImageStores

_FILE = "images-of"


class KeptImages:
    """Deletes images that belong to no lease in force.

    The digest of the lease is noted in the state folder, so that the successor of a killed agent keeps its images, too.
    """

    def __init__(self, stores: ImageStores, state_dir: Path) -> None:
        self._stores = stores
        self._file = state_dir / _FILE
        self._lease = ""
        self._heard = False  # a lease, by this agent

    def begin(self) -> None:
        """Keep images of the noted lease, if any, until another one is received."""
        self._keep(self._noted())

    def keep(self, lease: str) -> None:
        """Keep images of the lease with this digest, also those that a killed agent has saved; delete all others."""
        self._heard = True
        self._keep(lease)

    def leave(self, *, in_force: bool) -> None:
        """The agent ends in order: delete all images unless a lease is `in_force`, whose holder may want them.

        An agent that has received no lease cannot know; then images of the noted lease stay for the next agent.
        """
        if not in_force and (self._heard or not self._lease):
            self._stores.clear()

    def _keep(self, lease: str) -> None:
        if lease == self._lease and lease:
            return
        if not lease or lease != self._noted():
            self._stores.clear()
            self._file.write_text(lease, encoding="ascii")
        self._lease = lease

    def _noted(self) -> str:
        """Return the digest of the lease under which this node's images were saved; it may be empty."""
        with contextlib.suppress(OSError):
            return self._file.read_text(encoding="ascii")
        return ""
