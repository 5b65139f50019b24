"""Where an InfluxDB is: address, organization and bucket; from a scenario, the environment, the command line."""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True)
class Address:
    """A bucket of an organization of the server at `url`. Holds no secret: it is written into run directories."""

    url: str
    org: str
    bucket: str

    def __str__(self) -> str:
        return f"bucket {self.bucket!r} of organization {self.org!r} at {self.url}"


def is_url(text: str) -> bool:
    """Tell whether `text` is the address of an HTTP server that may be written down: without a password."""
    try:
        parts: SplitResult = urlsplit(text)
        port = parts.port  # raises where it is no number up to 65535
    except ValueError:
        return False
    return (
        parts.scheme in {"http", "https"}
        and bool(parts.hostname)
        and port != 0
        and not (parts.username or parts.password or parts.query or parts.fragment)
        and not any(character.isspace() for character in text)
    )


def find_address(
    table: Mapping[str, object] | None, *, url: str | None = None, org: str | None = None, bucket: str | None = None
) -> Address:
    """Return the address by, in this order: what is given, the environment, the scenario's `[influx]`, the defaults.

    The environment's names are those of the official client. Raises `InputError` for a URL that is none.
    """
    table = table or {}
    given = (
        ("--url", url),
        (URL_VARIABLE, os.environ.get(URL_VARIABLE)),
        ("influx.url", str(table.get("url", DEFAULT_URL))),
    )
    where, chosen = next((name, value) for name, value in given if value)
    if not is_url(chosen):
        raise InputError(where, "url", chosen, URL_EXPECTED)
    return Address(
        chosen.rstrip("/"),
        org or os.environ.get(ORG_VARIABLE) or str(table.get("org", DEFAULT_ORG)),
        bucket or str(table.get("bucket", DEFAULT_BUCKET)),
    )
