"""Writes line protocol to InfluxDB 2 through its official client, synchronously, and says what an answer means.

The client's batching mode loses points when it is closed, or holds up `close` for minutes when the server is away; so
batching, retries and what was shipped are kept on this side, and the client makes one request at a time.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from types import ModuleType
from typing import Final, Protocol

from testbed.errors import TestbedError, UserError
from testbed.measure.influx_address import TOKEN_VARIABLE, Address

TIMEOUT_S = 10.0
RETRY_AFTER_MOST_S = 120.0
_POINTS_REFUSED: Final = frozenset({400, 422})  # a field's type, a line that cannot be read, a time out of retention
_TRY_AGAIN: Final = frozenset({408, 425, 429})


class ServerAwayError(TestbedError):
    """The server did not acknowledge the points: try again, not before `retry_after_s` where it says so."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ServerRefusesError(UserError):
    """The server refuses any points: its address, organization, bucket or token is wrong; a person must fix it."""


class BatchTooLargeError(TestbedError):
    """The server takes less than this at a time."""


class PointsRefusedError(TestbedError):
    """The server refuses at least one of the points, and says why; others may be written."""


class Writer(Protocol):
    """The interface by which a shipper sends."""

    def write(self, lines: bytes) -> None:
        """Return when whole lines of line protocol are written, or raise one of the errors of this module."""

    def close(self) -> None:
        """Close connections."""


def client_module() -> ModuleType:
    """Import the client, or raise `UserError` that says how to get it."""
    try:
        import influxdb_client  # noqa: PLC0415  # takes most of a second, and is an extra
    except ImportError:
        raise UserError("InfluxDB needs another package: pip install 'dfrs-testbed[influx]'") from None
    return influxdb_client


class InfluxWriter:
    """Writes to one bucket; for one thread at a time. The token is taken from the environment."""

    def __init__(self, address: Address, *, gzip: bool = False, timeout_s: float = TIMEOUT_S) -> None:
        module = client_module()
        from influxdb_client.client.write_api import SYNCHRONOUS  # noqa: PLC0415  # an extra

        self._address = address
        self._client = module.InfluxDBClient(
            address.url,
            token=os.environ.get(TOKEN_VARIABLE),
            org=address.org,
            timeout=int(timeout_s * 1000),
            enable_gzip=gzip,
            retries=False,  # nor redirections: the shipper decides when to try again
            ssl_ca_cert=os.environ.get("INFLUXDB_V2_SSL_CA_CERT"),
        )
        self._api = self._client.write_api(write_options=SYNCHRONOUS)

    def write(self, lines: bytes) -> None:
        """Return when whole lines of line protocol (nanoseconds) are written, or raise an error of this module."""
        from influxdb_client.client.exceptions import InfluxDBError  # noqa: PLC0415  # an extra
        from urllib3.exceptions import HTTPError, SSLError  # noqa: PLC0415  # comes with the extra

        try:
            self._api.write(self._address.bucket, self._address.org, lines)
        except InfluxDBError as error:
            response = error.response
            if response is None:
                raise ServerAwayError(f"{self._address.url}: {error}") from error
            raise explain(self._address, response.status, response.data, response.getheaders()) from error
        except SSLError as error:
            raise ServerRefusesError(f"{self._address.url}: {error}: set INFLUXDB_V2_SSL_CA_CERT") from error
        except (HTTPError, UnicodeDecodeError) as error:  # the client decodes the answer
            raise ServerAwayError(f"{self._address.url}: {_reason(error)}") from error
        status = self._client.api_client.last_response.status
        if status != 204:  # a web server that says 200 to anything has not stored them
            raise ServerRefusesError(f"{self._address.url}: answered {status} where InfluxDB answers 204: is it one?")

    def close(self) -> None:
        """Close connections."""
        self._client.close()


def explain(address: Address, status: int, body: str | bytes, headers: Mapping[str, str]) -> TestbedError:
    """Return the error that an answer other than 204 stands for."""
    said, by_influx = _message(body)
    text = f"{address.url}: {status}: {said or 'no reason given'}"
    if status >= 500 or status in _TRY_AGAIN:
        return ServerAwayError(text, retry_after_s(headers.get("Retry-After")))
    if status == 413:
        return BatchTooLargeError(text)
    if status in _POINTS_REFUSED and by_influx:
        return PointsRefusedError(said)
    hints = {
        401: f"set {TOKEN_VARIABLE} to a token that may write to bucket {address.bucket!r}",
        403: f"set {TOKEN_VARIABLE} to a token that may write to bucket {address.bucket!r}",
        404: f"expected bucket {address.bucket!r} of organization {address.org!r} there: create it, or name another",
    }
    return ServerRefusesError(f"{text}: {hints.get(status, 'is that the address of an InfluxDB?')}")


def retry_after_s(value: str | None, now_s: float | None = None) -> float | None:
    """Read a Retry-After header, seconds or a date, as seconds from now, at most `RETRY_AFTER_MOST_S`."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - (time.time() if now_s is None else now_s)
        except ValueError:
            return None
    return min(max(0.0, seconds), RETRY_AFTER_MOST_S) if seconds == seconds else None  # noqa: PLR0124  # NaN


def _message(body: str | bytes) -> tuple[str, bool]:
    """Return the message in an error's body on one line, and whether InfluxDB wrote it: 2.x `message`, 1.x `error`."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else body
    try:
        value = json.loads(text)
    except ValueError:
        return " ".join(text.split())[:200], False
    said = (value.get("message") or value.get("error")) if isinstance(value, dict) else None
    return " ".join(str(said or value).split())[:500], isinstance(said, str)


def _reason(error: Exception) -> str:
    """Return the error without the client's object addresses."""
    text = " ".join(str(error).split())
    return text.partition(">: ")[2] or text.partition(": ")[2] or text
