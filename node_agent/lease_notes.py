"""Note of the lease in the state folder, for the next agent.

The next agent may have guests of a lease whose end was not reported to it. Then the lease counts as held until it must
have run out, and the terms in the note apply.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import msgspec

from testbed.bus.messages import BadRecordError, Lease, decode, encode
from testbed.host.whole_files import write_whole

FILE = "lease.json"
_log = logging.getLogger(__name__)


class LeaseNotes:
    """The file of the note. It is written when the terms change, and not at every renewal."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / FILE
        self._noted = b""

    def keep(self, lease: Lease) -> None:
        """Note the lease in force, whose token is not in its record."""
        noted = encode(msgspec.structs.replace(lease, expires_unix_s=0.0))
        if noted != self._noted:
            self._noted = noted
            try:
                write_whole(self._path, noted, durable=False)
            except OSError as error:
                _log.warning("%s: %s: the next agent will not know the lease", self._path, error.strerror)

    def read(self) -> Lease | None:
        """Return the lease of the last agent, None if there is no readable note."""
        with contextlib.suppress(OSError, BadRecordError):
            return decode(Lease, self._path.read_bytes(), str(self._path))
        return None
