"""Address and credentials of an MQTT broker."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import quote, unquote, urlsplit

from testbed.bus.tls import tls_folder
from testbed.errors import UserError

_PLAIN, _SECURE, _INSECURE = "mqtt", "mqtts", "insecure+mqtt"
_VARIABLE = re.compile(r"\$([A-Z][A-Z0-9_]*)")
_PORTS = {_PLAIN: 1883, _SECURE: 8883, _INSECURE: 1883}


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A broker's address. With `tls` its certificate is verified; `tls_dir` is the folder of `testbed.bus.tls`."""

    host: str
    port: int = 1883
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    tls_dir: Path | None = None

    @classmethod
    def parse(cls, url: str, tls_dir: Path | None = None) -> Self:
        """Parse `mqtts://[user[:password]@]host[:port]`, or `mqtt://…` on this machine; else raise `UserError`.

        Plain MQTT to another machine requires `insecure+mqtt://`. Without `tls_dir` the folder of our certificate is
        taken from the environment. `$NAME` is replaced by the URL in that environment variable, so that a file need not
        contain a password.
        """
        if named := _VARIABLE.fullmatch(url):
            url = os.environ.get(named[1], "")
            if not url:
                raise UserError(f"broker = {named[0]!r}: no such variable in the environment")
        expected = "expected mqtts://[user[:password]@]host[:port], or mqtt:// on this machine"
        try:
            parts = urlsplit(url)
            port, host = parts.port, parts.hostname
        except ValueError as error:
            raise UserError(f"broker = {_hidden(url)!r}: {error}; {expected}") from None
        if parts.scheme not in _PORTS or not host or parts.path.strip("/") or parts.query or parts.fragment:
            raise UserError(f"broker = {_hidden(url)!r}: {expected}")
        if port == 0:
            raise UserError(f"broker = {_hidden(url)!r}: expected a port from 1 to 65535")
        if parts.password is not None and not parts.username:
            raise UserError(f"broker = {_hidden(url)!r}: a password needs a user; {expected}")
        if parts.scheme == _PLAIN and not _is_here(host):
            raise UserError(
                f"broker = {_hidden(url)!r}: plain MQTT beyond this machine: expected mqtts://, or "
                "insecure+mqtt:// in a network where everybody is trusted"
            )
        tls = parts.scheme == _SECURE
        return cls(
            host=host,
            port=port or _PORTS[parts.scheme],
            username=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password) if parts.password is not None else None,
            tls=tls,
            tls_dir=tls_folder(tls_dir) if tls else None,
        )

    @property
    def url(self) -> str:
        """The address as a URL with the password, for a process that must connect with it; never for a log."""
        user = ""
        if self.username is not None:
            secret = "" if self.password is None else f":{quote(self.password, safe='')}"
            user = f"{quote(self.username, safe='')}{secret}@"
        scheme = _SECURE if self.tls else _PLAIN if _is_here(self.host) else _INSECURE
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{user}{host}:{self.port}"

    def __str__(self) -> str:
        return _hidden(self.url)


def _is_here(host: str) -> bool:
    """Whether a host name or address denotes this machine without a look-up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _hidden(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    _, at, host = rest.rpartition("@")
    return f"{scheme}{separator}…@{host}" if at else url
