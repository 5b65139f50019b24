"""Checks messages of nodes before they are used or recorded: quotas, size, and form.

Each node has quotas of its own, so messages of a flooding node are dropped before they are decoded, while messages of
other nodes are accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from testbed.bus.event_details import MOST_EVENT_BYTES, named, told
from testbed.bus.guest_details import GuestReport, report_of
from testbed.bus.messages import BadRecordError, GuestEvent, NodeStatus, OtherProtocolError, Record, decode
from testbed.bus.quotas import Bucket, Quota
from testbed.bus.suspicious_acts import ActKind, SuspiciousError
from testbed.bus.telemetry import Telemetry
from testbed.errors import shown

QUOTAS: dict[type[Record], Quota] = {
    NodeStatus: Quota(20, 0.2, 1 << 16),
    GuestEvent: Quota(2000, 50, 2048),
    Telemetry: Quota(2000, 250, 8192),  # an agent that reconnects sends 200 waiting samples per second
}
MOST_TELEMETRY_BYTES = 1 << 17  # more than 300 guests, at about 400 bytes each
_GUESTS_A_MESSAGE = 20  # guests that count as one message of the quota, as 8192 bytes do
R = TypeVar("R", bound=Record)


class Gate:
    """Decodes and checks the messages of one node; `now_s` is a monotonic clock."""

    def __init__(self, node: str, now_s: Callable[[], float]) -> None:
        self._node = node
        self._buckets = {kind: Bucket(quota, now_s) for kind, quota in QUOTAS.items()}

    def read(self, kind: type[R], topic: str, payload: bytes) -> R:
        """Return the record of a message; raises `SuspiciousError` for a refused one, or `OtherProtocolError`."""
        name = kind.__name__
        if not self._buckets[kind].take(len(payload)):
            raise SuspiciousError(ActKind.FLOOD, f"more {name} messages than {QUOTAS[kind].per_s:g} a second: dropped")
        try:
            record = decode(kind, payload, topic)
        except OtherProtocolError:  # an agent of another release is not suspicious
            raise
        except BadRecordError as error:
            raise SuspiciousError(ActKind.BAD_MESSAGE, str(error)) from None
        self._check_name(record, name)
        return record

    def _check_name(self, record: Record, what: str) -> None:
        says = getattr(record, "node", self._node)
        if says != self._node:
            text = f"a {what} says node = {shown(says, 40)}: expected {self._node!r}, as its topic says"
            raise SuspiciousError(ActKind.FALSE_REPORT, text)

    def telemetry(self, topic: str, payload: bytes) -> Telemetry:
        """Return a sample whose parts can all be recorded; raises as `read` does.

        Each guest in a sample is recorded as a point of the run. So a sample may have each guest only once, and guests
        count against the quota.
        """
        if len(payload) > MOST_TELEMETRY_BYTES:
            what = f"a Telemetry of {len(payload)} bytes: expected at most {MOST_TELEMETRY_BYTES}"
            raise SuspiciousError(ActKind.BAD_MESSAGE, what)
        record = self.read(Telemetry, topic, payload)
        names = {sample.guest for sample in record.guests}
        if len(names) < len(record.guests):
            what = f"a Telemetry of {len(record.guests)} guests, {len(names)} of them different: expected each once"
            raise SuspiciousError(ActKind.BAD_MESSAGE, what)
        paid = max(1.0, len(payload) / QUOTAS[Telemetry].message_bytes)
        if not self._buckets[Telemetry].charge(max(0.0, len(names) / _GUESTS_A_MESSAGE - paid)):
            raise SuspiciousError(ActKind.FLOOD, "more samples of guests than a node has reason to send: dropped")
        return record

    def event(self, topic: str, payload: bytes) -> tuple[GuestReport, int]:
        """Return a guest's event that can be recorded, and the number of omitted fields; raises as `read` does."""
        if len(payload) > MOST_EVENT_BYTES:
            what = f"an event of {len(payload)} bytes: expected at most {MOST_EVENT_BYTES}"
            raise SuspiciousError(ActKind.BAD_MESSAGE, what)
        event = self.read(GuestEvent, topic, payload)
        if not named(event):
            what = (
                f"bad record on {topic}: guest {shown(event.guest, 40)}, event {shown(event.event, 40)}: expected names"
            )
            raise SuspiciousError(ActKind.BAD_MESSAGE, what)
        detail = told(event.event, event.detail)
        left_out = len(event.detail) - len(detail)
        try:
            return report_of(msgspec.structs.replace(event, detail=detail)), left_out
        except BadRecordError as error:
            what = f"bad record on {topic}: detail of {event.event}: {error.reason}"
            raise SuspiciousError(ActKind.BAD_MESSAGE, what) from None
