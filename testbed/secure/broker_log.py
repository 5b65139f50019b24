"""Mosquitto's log of a lab, read for what its rules denied and for clients that do not belong where they are.

Mosquitto tells denied messages at its debug level only, beside every packet. `UNWANTED` is what a filter drops of that:
a line or more per packet. A subscription is never refused, as the rules are applied to each message: it is logged, and
judged here. Client ids and user names in these lines are those of certificates, and topics have no control characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from testbed.bus import topics
from testbed.errors import UserError
from testbed.secure.authority import CONTROLLER_PREFIX
from testbed.suspicious_acts import SOMEBODY, Act, ActKind

UNWANTED = r"^[0-9]+: (Received |Sending |No will |Will message |[[:space:]])"  # as grep -E reads it
NAMESAKES = 5  # so often may a client take its own session over: it may have lost its connection

_LINE = re.compile(r"(?P<unix_s>\d+): (?P<text>.*)")
_CONNECTION = re.compile(r"New connection from (?P<host>\S+):\d+ on port (?P<port>\d+)\.")
_CLIENT = re.compile(r"New client connected from \S+ as (?P<client>\S+) \(p\d, c\d, k\d+, u'(?P<user>[^']*)'\)\.")
_DENIED = re.compile(r"Denied PUBLISH from (?P<client>\S+) \(d\d, q\d, r(?P<retain>\d), m\d+, '(?P<topic>.*)', .*\)")
_TAKEN = re.compile(r"Client (?P<client>\S+) already connected, closing old connection\.")
_LARGE = re.compile(r"Client (?P<client>\S+) disconnected due to (?P<why>oversize packet|out of memory)\.")
_TLS = re.compile(r"OpenSSL Error\[\d+\]: error:[0-9A-F]+:[^:]*:[^:]*:(?P<why>.+)")
_SUBSCRIPTION = re.compile(r"(?P<client>\S+) [0-2] (?P<pattern>.+)")


def acts_of(lines: Iterable[str], lab: str, since_unix_s: float = 0.0) -> Iterator[Act]:
    """Yield the suspicious acts of a log from a Unix time on; lines that say nothing of the kind are passed over."""
    users: dict[str, str] = {}
    taken: dict[str, int] = {}
    came_from = "somewhere"
    for line in lines:
        found = _LINE.fullmatch(line.rstrip("\n"))
        if found is None:
            continue
        unix_s, text = float(found["unix_s"]), found["text"]
        if connection := _CONNECTION.fullmatch(text):
            came_from = f"{connection['host']} on port {connection['port']}"
        elif client := _CLIENT.fullmatch(text):
            users[client["client"]] = client["user"]
        elif unix_s >= since_unix_s:
            yield from _act(text, unix_s, lab, users, taken, came_from)


def _act(
    text: str, unix_s: float, lab: str, users: dict[str, str], taken: dict[str, int], came_from: str
) -> Iterator[Act]:  # fmt: skip
    if denied := _DENIED.fullmatch(text):
        what = f"{'a retained message on' if denied['retain'] == '1' else 'a message on'} {denied['topic']}"
        yield Act(users.get(denied["client"], denied["client"]), ActKind.DENIED_PUBLISH, what, unix_s)
    elif took := _TAKEN.fullmatch(text):
        client = took["client"]
        taken[client] = taken.get(client, 0) + 1
        if taken[client] > NAMESAKES:
            yield Act(client, ActKind.NAMESAKE, "another client of its name took its session over", unix_s)
    elif large := _LARGE.fullmatch(text):
        yield Act(large["client"], ActKind.FLOOD, f"it was disconnected: {large['why']}", unix_s)
    elif tls := _TLS.fullmatch(text):
        yield Act(SOMEBODY, ActKind.REFUSED_CONNECTION, f"from {came_from}: {tls['why']}", unix_s)
    elif subscription := _SUBSCRIPTION.fullmatch(text):
        user = users.get(subscription["client"], "")
        if user and not user.startswith(CONTROLLER_PREFIX) and not _may_read(lab, user, subscription["pattern"]):
            yield Act(user, ActKind.FOREIGN_SUBSCRIPTION, f"to {subscription['pattern']}", unix_s)


def _may_read(lab: str, node: str, pattern: str) -> bool:
    try:
        return pattern in (topics.lease_topic(lab), topics.node_topic(lab, node, "command"))
    except UserError:  # no node has such a name
        return False
