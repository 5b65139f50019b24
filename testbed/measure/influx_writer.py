"""Writes line protocol to InfluxDB 2 synchronously, through its official client, and interprets the responses.

The client's batching mode loses points when it is closed, or delays `close` for minutes when the server is unreachable.
Therefore this package does batching, retries and the position itself, and the client makes one request at a time.
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
    """The server did not acknowledge the points: retry, and not before `retry_after_s` if the server sets it."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ServerRefusesError(UserError):
    """The server refuses all points: address, organization, bucket or token is wrong, and a person has to fix it."""


class BatchTooLargeError(TestbedError):
    """The batch exceeds the size that the server accepts."""


class PointsRefusedError(TestbedError):
    """The server refuses at least one of the points, with a reason; other points may be written."""


class Writer(Protocol):
    """The interface through which a shipper sends points."""

    def write(self, lines: bytes) -> None:
        """Return when whole lines of line protocol are written, or raise one of the errors of this module."""

    def close(self) -> None:
        """Close connections."""


def client_module() -> ModuleType:
    """Import the client; raises `UserError` with the command that installs it."""
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
            retries=False,  # and no redirections: the shipper decides when to retry
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
        if status != 204:  # a web server that answers 200 to any request has not stored the points
            raise ServerRefusesError(f"{self._address.url}: answered {status} where InfluxDB answers 204: is it one?")

    def close(self) -> None:
        """Close connections."""
        self._client.close()


def explain(address: Address, status: int, body: str | bytes, headers: Mapping[str, str]) -> TestbedError:
    """Return the error for a response with a status other than 204."""
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
    """Parse a Retry-After header, seconds or a date, into seconds from now, at most `RETRY_AFTER_MOST_S`."""
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
    """Return the text of an error without the addresses of the client's objects."""
    text = " ".join(str(error).split())
    return text.partition(">: ")[2] or text.partition(": ")[2] or text
