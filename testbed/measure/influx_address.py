"""The address of an InfluxDB: URL, organization and bucket, from the command line, the environment or a scenario."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from testbed.errors import InputError

DEFAULT_URL = "http://127.0.0.1:8086"
DEFAULT_ORG = "lab"
DEFAULT_BUCKET = "testbed"
TOKEN_VARIABLE = "INFLUXDB_V2_TOKEN"  # noqa: S105  # the name of the variable, not a token
URL_VARIABLE = "INFLUXDB_V2_URL"
ORG_VARIABLE = "INFLUXDB_V2_ORG"
URL_EXPECTED = "an address like http://HOST:PORT, without user, password, query or fragment"
TLS_EXPECTED = (
    "https:// beyond this machine, as each request has the token in it, or insecure+http:// in a network where "
    "everybody is trusted"
)
_ASKED_FOR = "insecure+"


@dataclass(frozen=True, slots=True)
class Address:
    """A bucket of an organization of the server at `url`. It has no secrets, because run directories contain it."""

    url: str
    org: str
    bucket: str

    def __str__(self) -> str:
        return f"bucket {self.bucket!r} of organization {self.org!r} at {self.url}"


def is_url(text: str) -> bool:
    """Return whether `text` is the URL of an HTTP server without a password, so that it may be stored."""
    try:
        parts: SplitResult = urlsplit(text)
        port = parts.port  # raises for anything but a number up to 65535
    except ValueError:
        return False
    return (
        parts.scheme in {"http", "https"}
        and bool(parts.hostname)
        and port != 0
        and not (parts.username or parts.password or parts.query or parts.fragment)
        and not any(character.isspace() for character in text)
    )


def expected_url(text: str) -> str:
    """Return a description of the expected form if an address cannot be used, else an empty string.

    Plain HTTP to another machine requires the explicit scheme `insecure+http://`.
    """
    bare = bare_url(text)
    if not is_url(bare):
        return URL_EXPECTED
    parts = urlsplit(bare)
    plain = parts.scheme == "http" and bare == text
    return TLS_EXPECTED if plain and not _is_here(parts.hostname or "") else ""


def bare_url(text: str) -> str:
    """Return the URL for the client, with the scheme http or https."""
    return text.removeprefix(_ASKED_FOR) if text.startswith(f"{_ASKED_FOR}http://") else text


def _is_here(host: str) -> bool:
    """Whether a host name or address denotes this machine without name resolution."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def find_address(
    table: Mapping[str, object] | None, *, url: str | None = None, org: str | None = None, bucket: str | None = None
) -> Address:
    """Return the address from, in this order: arguments, the environment, the scenario's `[influx]`, defaults.

    The environment variables are those of the official client. Raises `InputError` for a URL that cannot be used.
    """
    table = table or {}
    given = (
        ("--url", url),
        (URL_VARIABLE, os.environ.get(URL_VARIABLE)),
        ("influx.url", str(table.get("url", DEFAULT_URL))),
    )
    where, chosen = next((name, value) for name, value in given if value)
    if expected := expected_url(chosen):
        raise InputError(where, "url", chosen, expected)
    return Address(
        bare_url(chosen).rstrip("/"),
        org or os.environ.get(ORG_VARIABLE) or str(table.get("org", DEFAULT_ORG)),
        bucket or str(table.get("bucket", DEFAULT_BUCKET)),
    )
