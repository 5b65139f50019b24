"""Validity and common names of X.509 certificates, with a warning 30 days before expiry."""

from __future__ import annotations

import logging
import ssl
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from testbed.errors import UserError

SOON = timedelta(days=30)
RENEW = "testbed ca issue, or ansible-playbook rotate.yml"
_AGAIN_S = 86_400.0
_VERSION = 0xA0  # tag of the certificate's form: absent in the first
_UTC_TIME = 0x17
_COMMON_NAME = b"\x55\x04\x03"  # 2.5.4.3
_ISSUER, _VALIDITY, _SUBJECT = 3, 4, 5  # fields of a certificate [RFC 5280 4.1]
_CONTROLLER = "controller."  # begins the common name of each controller (`testbed.lab.secure.authority`)

_log = logging.getLogger(__name__)
_said_s: dict[Path, float] = {}  # monotonic time at which the expiry of each certificate was last logged


def check_dates(cert: Path) -> None:
    """Raise `UserError` if our own certificate is not valid now, because the peer would close without a reason.

    A certificate that expires within 30 days is logged, once per day.
    """
    dates = dates_of(cert)
    if dates is None:
        return  # a form that we cannot read: the TLS handshake decides
    since, until = dates
    now = datetime.now(UTC)
    if now > until:
        raise UserError(f"{cert}: expired on {until:%Y-%m-%d %H:%M} UTC: expected one that is valid; testbed ca issue")
    if now < since:
        raise UserError(f"{cert}: not valid before {since:%Y-%m-%d %H:%M} UTC, and it is {now:%Y-%m-%d %H:%M} UTC here")
    if until - now < SOON and time.monotonic() - _said_s.get(cert, float("-inf")) >= _AGAIN_S:
        _said_s[cert] = time.monotonic()
        _log.warning("%s: expires in %d days, on %s: %s", cert, (until - now).days, f"{until:%Y-%m-%d}", RENEW)


def dates_of(cert: Path) -> tuple[datetime, datetime] | None:
    """Return the validity period of a file's first certificate (UTC), None if its form is unknown.

    Raises `OSError` for a file that cannot be read.
    """
    try:
        return validity(_der(cert))
    except ValueError:  # no PEM; also bytes that are no ASCII
        return None


def names_of(folder: Path | None) -> tuple[str, str]:
    """Return the issuer and the owner of the certificate in `folder`; empty where unreadable."""
    if folder is None:
        return "", ""
    try:
        der = _der(folder / "cert.pem")
    except (OSError, ValueError):
        return "", ""
    return _common_name(der, _ISSUER), _common_name(der, _SUBJECT)


def own_name(folder: Path | None) -> str:
    """Return the name of the controller whose certificate is in `folder`; empty without one, or for a node's."""
    _, name = names_of(folder)
    return name.removeprefix(_CONTROLLER) if name.startswith(_CONTROLLER) else ""


def _der(cert: Path) -> bytes:
    text, end = cert.read_text(encoding="ascii"), "-----END CERTIFICATE-----"
    begin = text.find("-----BEGIN CERTIFICATE-----")
    return ssl.PEM_cert_to_DER_cert(text[begin : text.find(end) + len(end)] + "\n")


def validity(der: bytes) -> tuple[datetime, datetime] | None:
    """Return the validity period of an X.509 certificate, None if its form is unknown."""
    try:
        (since, until) = (_date(tag, value.decode("ascii")) for tag, value in _parts(_field(der, _VALIDITY)))
    except (IndexError, ValueError):
        return None
    return since, until


def common_name(der: bytes) -> str:
    """Return the common name of an X.509 certificate's subject, an empty string if it has no readable one."""
    return _common_name(der, _SUBJECT)


def _common_name(der: bytes, field: int) -> str:
    try:
        for _, names in _parts(_field(der, field)):
            for _, pair in _parts(names):
                (_, kind), (_, value) = _parts(pair)
                if kind == _COMMON_NAME:
                    return value.decode("utf-8")
    except (IndexError, ValueError):
        pass
    return ""


def _field(der: bytes, number: int) -> bytes:
    """Return a field of a certificate, by its number in certificates that have a version [RFC 5280 4.1]."""
    tbs = _parts(_parts(_parts(der)[0][1])[0][1])
    return tbs[number if tbs[0][0] == _VERSION else number - 1][1]


def _date(tag: int, text: str) -> datetime:
    if tag == _UTC_TIME:  # two digits of the year, of 1950 to 2049 [RFC 5280 4.1.2.5.1]
        text = ("19" if text >= "5" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _parts(der: bytes) -> list[tuple[int, bytes]]:
    """Return tags and contents of the values that follow one another in DER."""
    parts, at = [], 0
    while at < len(der):
        tag, size, at = der[at], der[at + 1], at + 2
        if size & 0x80:
            octets = size & 0x7F
            size, at = int.from_bytes(der[at : at + octets], "big"), at + octets
        if at + size > len(der):
            raise ValueError("cut off")
        parts.append((tag, der[at : at + size]))
        at += size
    return parts
