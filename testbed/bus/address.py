"""Where the broker is, and how to be let in."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import quote, unquote, urlsplit

from testbed.errors import UserError

_PORTS = {"mqtt": 1883, "mqtts": 8883}


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A broker. `ca_file` checks its certificate; `cert_file`, `key_file` are our own (mutual TLS)."""

    host: str
    port: int = 1883
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    @classmethod
    def parse(cls, url: str) -> Self:
        """Read `mqtt://[user[:password]@]host[:port]` or `mqtts://…`; anything else is a `UserError`."""
        expected = "expected mqtt://[user[:password]@]host[:port], or mqtts:// for TLS"
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
        return cls(
            host=host,
            port=port or _PORTS[parts.scheme],
            username=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password) if parts.password is not None else None,
            tls=parts.scheme == "mqtts",
        )

    @property
    def url(self) -> str:
        """The address with its password, for a process that must connect with it; never for a log."""
        user = ""
        if self.username is not None:
            secret = "" if self.password is None else f":{quote(self.password, safe='')}"
            user = f"{quote(self.username, safe='')}{secret}@"
        scheme = "mqtts" if self.tls else "mqtt"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{user}{host}:{self.port}"

    def __str__(self) -> str:
        return _hidden(self.url)


def _hidden(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    _, at, host = rest.rpartition("@")
    return f"{scheme}{separator}…@{host}" if at else url
