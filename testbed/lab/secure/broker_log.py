"""Searches Mosquitto's log of a lab for suspicious acts, such as denied messages and refused connections.

Mosquitto logs denied messages and refused subscriptions only at its debug level, together with every packet. `UNWANTED`
matches the lines that a filter drops: one or more per packet. This module decides which subscriptions a client may
have. Client ids and user names in these lines are those of certificates. Topics have no ASCII control characters, but
may have other characters that Python treats as the end of a line, so a log is split only at line feeds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from testbed.bus import topics
from testbed.bus.suspicious_acts import SOMEBODY, Act, ActKind
from testbed.errors import UserError
from testbed.lab.secure.authority import CONTROLLER_PREFIX

UNWANTED = r"^[0-9]+: (Received (PUB|PING|DISC|AUTH)|Sending |No will |Will message )"  # in the syntax of grep -E
NAMESAKES = 5  # takeovers of its own session that a client may make after lost connections

_LINE = re.compile(r"(?P<unix_s>\d+): (?P<text>.*)")
_CONNECTION = re.compile(r"New connection from (?P<host>\S+):\d+ on port (?P<port>\d+)\.")
_CLIENT = re.compile(r"New client connected from \S+ as (?P<client>\S+) \(p\d, c\d, k\d+, u'(?P<user>[^']*)'\)\.")
_DENIED = re.compile(r"Denied PUBLISH from (?P<client>\S+) \(d\d, q\d, r(?P<retain>\d), m\d+, '(?P<topic>.*)', .*\)")
_TAKEN = re.compile(r"Client (?P<client>\S+) already connected, closing old connection\.")
_LARGE = re.compile(r"Client (?P<client>\S+) disconnected due to (?P<why>oversize packet|out of memory)\.")
_UNAUTHORISED = re.compile(r"Client (?P<client>\S+) disconnected, not authorised\.")
_UNKNOWN = "<unknown>"  # a client before its authentication
_TLS = re.compile(r"OpenSSL Error\[\d+\]: error:[0-9A-F]+:[^:]*:[^:]*:(?P<why>.+)")
_FAILED = re.compile(r"Client connection from (?P<host>\S+) failed: error:[0-9A-F]+:[^:]*:[^:]*:(?P<why>.+)\.")
_CUT_OFF = "unexpected eof while reading"  # a client that was killed
_ASKS = re.compile(r"Received SUBSCRIBE from (?P<client>\S+)")
_ASKED = re.compile(r"\t(?P<pattern>.+) \(QoS [0-2]\)")  # a line for each of its topics
_SUBSCRIPTION = re.compile(r"(?P<client>\S+) [0-2] (?P<pattern>.+)")


@dataclass(slots=True)
class _Reader:
    """Parser state from earlier lines: `asks` is the client of the current SUBSCRIBE, `asked` its last topic."""

    lab: str
    users: dict[str, str] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)
    came_from: str = "somewhere"
    asks: str = ""
    asked: str = ""

    def act(self, text: str, unix_s: float) -> Act | None:
        """Return the suspicious act in a line, if any."""
        if topic := _ASKED.fullmatch(text):
            self.asked = topic["pattern"]
            return self._subscribes(self.asks, self.asked, unix_s) if self.asks else None
        if granted := _SUBSCRIPTION.fullmatch(text):
            told = (granted["client"], granted["pattern"]) == (self.asks, self.asked)
            return None if told else self._subscribes(granted["client"], granted["pattern"], unix_s)
        asks = _ASKS.fullmatch(text)
        self.asks, self.asked = asks["client"] if asks else "", ""
        if connection := _CONNECTION.fullmatch(text):
            self.came_from = f"{connection['host']} on port {connection['port']}"
        elif client := _CLIENT.fullmatch(text):
            self.users[client["client"]] = client["user"]
        elif took := _TAKEN.fullmatch(text):
            return self._takes_over(took["client"], unix_s)
        else:
            return self._other(text, unix_s)
        return None

    def _other(self, text: str, unix_s: float) -> Act | None:
        if denied := _DENIED.fullmatch(text):
            what = f"{'a retained message on' if denied['retain'] == '1' else 'a message on'} {denied['topic']}"
            return Act(self.users.get(denied["client"], denied["client"]), ActKind.DENIED_PUBLISH, what, unix_s)
        if large := _LARGE.fullmatch(text):
            return Act(large["client"], ActKind.FLOOD, f"it was disconnected: {large['why']}", unix_s)
        if refused := _UNAUTHORISED.fullmatch(text):
            if refused["client"] != _UNKNOWN:
                return Act(refused["client"], ActKind.REFUSED_CONNECTION, "not authorised", unix_s)
            return Act(SOMEBODY, ActKind.REFUSED_CONNECTION, f"from {self.came_from}: not authorised", unix_s)
        return self._failed_handshake(text, unix_s)

    def _failed_handshake(self, text: str, unix_s: float) -> Act | None:
        """Return the refused TLS handshake in a line, if any.

        The line itself has the client's host only if all data had arrived when the broker accepted the connection.
        """
        failed = _TLS.fullmatch(text) or _FAILED.fullmatch(text)
        if failed is None or failed["why"] == _CUT_OFF:
            return None
        host = failed.groupdict().get("host", self.came_from)
        return Act(SOMEBODY, ActKind.REFUSED_CONNECTION, f"from {host}: {failed['why']}", unix_s)

    def _takes_over(self, client: str, unix_s: float) -> Act | None:
        self.taken[client] = self.taken.get(client, 0) + 1
        if self.taken[client] <= NAMESAKES:
            return None
        return Act(client, ActKind.NAMESAKE, "another client of its name took its session over", unix_s)

    def _subscribes(self, client: str, pattern: str, unix_s: float) -> Act | None:
        user = self.users.get(client, "")
        if not user or user.startswith(CONTROLLER_PREFIX) or _may_read(self.lab, user, pattern):
            return None
        return Act(user, ActKind.FOREIGN_SUBSCRIPTION, f"to {pattern}", unix_s)


def acts_of(lines: Iterable[str], lab: str, since_unix_s: float = 0.0) -> Iterator[Act]:
    """Yield the suspicious acts of a log from a Unix time on; other lines are skipped."""
    reader = _Reader(lab)
    for line in lines:
        found = _LINE.fullmatch(line.rstrip("\n"))
        if found is None:
            continue
        unix_s = float(found["unix_s"])
        act = reader.act(found["text"], unix_s)
        if act is not None and unix_s >= since_unix_s:
            yield act


def _may_read(lab: str, node: str, pattern: str) -> bool:
    try:
        return pattern in topics.readable_by(lab, node)
    except UserError:  # not a valid name of a node
        return False
