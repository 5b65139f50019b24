"""Whom the agent obeys: the holder of the lab's lease, as long as it is renewed."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable

from testbed.bus.messages import BadRecordError, Lease, decode

_log = logging.getLogger(__name__)


class LeaseGuard:
    """Follows the lease topic.

    The time to live counts from when a renewal was heard, by the loop's own clock, so that clocks of machines need not
    agree; only a retained record of a lease that ended while nobody listened is judged by its wall-clock time.
    """

    def __init__(self, now_s: Callable[[], float], unix_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._unix_s = unix_s
        self._token = ""
        self._holder = ""
        self._ends_s = 0.0

    @property
    def live(self) -> bool:
        """Whether somebody holds the lease."""
        return bool(self._token) and self._now_s() < self._ends_s

    @property
    def token(self) -> str:
        """The token of the live lease, or an empty string."""
        return self._token if self.live else ""

    @property
    def name(self) -> str:
        """What the live lease may be called in public: its holder and a digest of its token; else an empty string."""
        digest = hashlib.sha256(self._token.encode()).hexdigest()[:12]
        return f"{self._holder}/{digest}" if self.live else ""

    @property
    def remaining_s(self) -> float:
        """Seconds until the lease runs out if it is not renewed; 0 when nobody holds it."""
        return max(0.0, self._ends_s - self._now_s()) if self._token else 0.0

    def allows(self, token: str) -> bool:
        """Whether a command with this token is to be obeyed."""
        return self.live and token == self._token

    def hear(self, topic: str, payload: bytes) -> bool:
        """Take a record of the lease topic; return whether the holder that was has just let go."""
        if not payload:
            return self._let_go("")
        try:
            lease = decode(Lease, payload, topic)
        except BadRecordError as error:
            _log.warning("%s", error)
            return False
        if lease.released:
            return self._let_go(lease.token)
        if self.live and lease.token != self._token:
            _log.warning("lease of %s ignored: %s holds the lab", lease.holder, self._holder)
            return False
        if lease.token != self._token and lease.expires_unix_s <= self._unix_s():
            return False
        self._token, self._holder = lease.token, lease.holder
        self._ends_s = self._now_s() + lease.ttl_s
        return False

    def _let_go(self, token: str) -> bool:
        if not self._token or (token and token != self._token):
            return False
        self._token = self._holder = ""
        return True

    def run_out(self) -> bool:
        """Return whether the lease has just run out, and forget it."""
        if self._token and not self.live:
            self._token = self._holder = ""
            return True
        return False
