"""TLS 1.3 with certificates at both ends, from a party's folder (`testbed.secure.authority` says what is in it)."""

from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime
from pathlib import Path

from testbed.errors import UserError

FOLDER_VARIABLE = "TESTBED_TLS_DIR"


def tls_folder(given: Path | None) -> Path | None:
    """Return the folder of our certificate: the given one, or that of the environment variable, if any."""
    named = os.environ.get(FOLDER_VARIABLE)
    folder = given or (Path(named) if named else None)
    return folder.expanduser() if folder else None


def client_context(folder: Path | None, trusts: str = "ca.pem") -> ssl.SSLContext:
    """Return what a connection is made with, to who has a certificate of an authority in the file `trusts`.

    Without a folder that is any authority that this machine trusts, and we show no certificate. Raises `UserError`.
    """
    context = _context(ssl.Purpose.SERVER_AUTH, folder and folder / trusts)
    if folder is not None:
        _load(context, folder)
    return context


def server_context(folder: Path, trusts: str = "peers.pem") -> ssl.SSLContext:
    """Return what connections are accepted with, from who has a certificate of an authority in the file `trusts`."""
    context = _context(ssl.Purpose.CLIENT_AUTH, folder / trusts)
    context.verify_mode = ssl.CERT_REQUIRED
    _load(context, folder)
    return context


def _context(purpose: ssl.Purpose, trusted: Path | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(purpose, cafile=trusted)
    except FileNotFoundError:
        raise UserError(
            f"{trusted}: no such file: expected a folder of `testbed ca issue` as tls_dir, --tls-dir or "
            f"{FOLDER_VARIABLE}"
        ) from None
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"{trusted}: expected certificates of who is trusted: {error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _load(context: ssl.SSLContext, folder: Path) -> None:
    cert, key = folder / "cert.pem", folder / "key.pem"
    try:
        if key.stat().st_mode & 0o077:
            raise UserError(f"{key}: others may read it: expected chmod 600")
        context.load_cert_chain(cert, key)
        _check_dates(cert)
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"{folder}: expected cert.pem and its key.pem: {error}") from None


def _check_dates(cert: Path) -> None:
    """Raise `UserError` if our own certificate is not valid now: the other end would only hang up."""
    dates = validity(ssl.PEM_cert_to_DER_cert(_first_certificate(cert.read_text(encoding="ascii"))))
    if dates is None:
        return  # of a form that we cannot read; the handshake judges it
    since, until = dates
    now = datetime.now(UTC)
    if now > until:
        raise UserError(f"{cert}: expired on {until:%Y-%m-%d %H:%M} UTC: expected one that is valid; testbed ca issue")
    if now < since:
        raise UserError(f"{cert}: not valid before {since:%Y-%m-%d %H:%M} UTC, and it is {now:%Y-%m-%d %H:%M} UTC here")


def _first_certificate(text: str) -> str:
    end = "-----END CERTIFICATE-----"
    begin = text.find("-----BEGIN CERTIFICATE-----")
    return text[begin : text.find(end) + len(end)] + "\n"


def validity(der: bytes) -> tuple[datetime, datetime] | None:
    """Return from when to when an X.509 certificate is valid, None if its form is unknown."""
    try:
        tbs = _parts(_parts(_parts(der)[0][1])[0][1])
        dates = _parts(tbs[4 if tbs[0][0] == _VERSION else 3][1])
        (since, until) = (_date(tag, value.decode("ascii")) for tag, value in dates)
    except (IndexError, ValueError):
        return None
    return since, until


_VERSION = 0xA0  # of the certificate's form: absent in the first
_UTC_TIME = 0x17


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
