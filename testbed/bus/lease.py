"""The lease of a lab: the rule by which both agents and controllers interpret the lease topic.

All receive the records of the topic in the same order, so all agree on the holder. The first holder of a free lab keeps
the lease until it releases the lease, stops renewing it, or another controller ends it by force. Only the digest of the
lease's token is published. The token itself is only in commands, so a reader of the topic cannot command agents.

The broker lets every controller write the lease topic, so a record there must prove its authority:

* A release has the token, which is invalid from then on. Before, only the holder and the agents know it.
* A renewal extends the lease, and changes none of its terms.
* The lease of a controller that resumes a run has the token of the previous lease, and replaces that lease without a
  release.
* A controller ends the lease of another on a topic of its own, to which the broker lets no other controller write, so
  the name of that controller is known.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Iterable

from testbed.bus.messages import BadRecordError, Lease, OnControllerLoss, decode
from testbed.bus.topics import releaser_of

_MOST_CHARS = 100  # of a name that another party chooses for itself
_log = logging.getLogger(__name__)


def new_token() -> str:
    """Return a new random token."""
    return secrets.token_hex(16)


def token_digest(token: str) -> str:
    """Return the published digest of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def is_one_of(digest: str, tokens: Iterable[str]) -> bool:
    """Whether a published digest matches one of these tokens."""
    return any(hmac.compare_digest(token_digest(token), digest) for token in tokens)


class LeaseGuard:
    """State of a lab's lease, as it follows from the records of the lease topic and the release topics.

    The time to live counts from the reception of a renewal, by the loop's own clock, so that the machines' clocks need
    not agree. Only for a retained record, whose lease may have ended before it was received, the wall-clock time of its
    expiry is compared.
    """

    def __init__(self, now_s: Callable[[], float], unix_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._unix_s = unix_s
        self._lease: Lease | None = None
        self._ends_s = 0.0
        self._expected = False  # the lease was recorded by an earlier agent, and was not renewed since
        self._lapsed = False  # a lease ran out, and another was received before the next query
        self._ended = ""  # digest of the last released lease: a late renewal must not revive it
        self.released_by = ""  # the controller that ended the last released lease, if not its holder
        self.on_controller_loss: OnControllerLoss = "remove"  # treatment of the last holder's guests at the lease's end

    @property
    def live(self) -> bool:
        """Whether the lease is held."""
        return self._lease is not None and self._now_s() < self._ends_s

    @property
    def lease(self) -> Lease | None:
        """The live lease, as last received."""
        return self._lease if self.live else None

    @property
    def name(self) -> str:
        """The public name of the live lease, of its holder and its digest; an empty string if there is none."""
        return f"{self._lease.holder}/{self._lease.digest[:12]}" if self._lease and self.live else ""

    @property
    def remaining_s(self) -> float:
        """Seconds until the lease runs out if it is not renewed; 0 when it is not held."""
        return max(0.0, self._ends_s - self._now_s()) if self._lease else 0.0

    def allows(self, token: str) -> bool:
        """Whether a command with this token is to be executed."""
        lease = self.lease
        return lease is not None and hmac.compare_digest(token_digest(token), lease.digest)

    def expect(self, lease: Lease) -> None:
        """Assume a lease that an earlier agent has recorded, until it is renewed, replaced by another, or runs out."""
        self._lease, self.on_controller_loss = lease, lease.on_controller_loss
        self._ends_s = self._now_s() + lease.ttl_s
        self._expected = True

    def hear(self, topic: str, payload: bytes) -> bool:
        """Process a record of the lease topic or a release topic; return whether the lease was released or ended."""
        if not payload:  # the retained record was removed: the lease continues while it is renewed
            return False
        try:
            lease = decode(Lease, payload, topic, any_protocol=True)  # a holder of any release has the lab
        except BadRecordError as error:
            _log.warning("%s", error)
            return False
        by = releaser_of(topic)
        if lease.released:
            return self._released(lease, by)
        if not by:
            self._renewed(lease)
        return False

    def _renewed(self, lease: Lease) -> None:
        held = self.lease
        if held is not None and lease.digest != held.digest and self._follows(lease, held):
            self._ended, self._lease, held = held.digest, None, None
        if held is not None and lease.digest != held.digest and self._expected:
            if lease.expires_unix_s <= self._unix_s() or lease.digest == self._ended:
                return
            held = None  # the expected lease was released or replaced while no agent was running
        self._expected = False
        if held is not None and lease.digest != held.digest:
            _log.warning("lease of %s ignored: %s holds the lab", lease.holder, held.holder)
            return
        if held is None and (lease.expires_unix_s <= self._unix_s() or lease.digest == self._ended):
            return
        if held is None:
            self._lapsed |= self._lease is not None and self._lease.digest != lease.digest
        terms = held or lease
        self._lease, self.on_controller_loss = terms, terms.on_controller_loss
        self._ends_s = self._now_s() + terms.ttl_s

    def _follows(self, lease: Lease, held: Lease) -> bool:
        """Whether a lease is that of the next controller of the same run, which has the token of the held lease."""
        return bool(lease.run) and lease.run == held.run and is_one_of(held.digest, lease.succeeds)

    def _released(self, lease: Lease, by: str) -> bool:
        held = self._lease
        if not by and not hmac.compare_digest(token_digest(lease.token), lease.digest):
            _log.warning("release of the lease of %s ignored: it is not by its holder", lease.holder[:_MOST_CHARS])
            return False
        if held is not None and lease.digest != held.digest:
            return False
        self._ended = lease.digest
        self._lease = None
        if held is not None:
            self.released_by = f"{by} ({lease.released_by[:_MOST_CHARS]})" if by else ""
        return held is not None

    def run_out(self) -> bool:
        """Return whether a lease has run out since the last call, and forget it."""
        lapsed, self._lapsed = self._lapsed, False
        if self._lease is not None and not self.live:
            self._lease = None
            return True
        return lapsed
