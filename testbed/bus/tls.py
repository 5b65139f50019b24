"""TLS 1.3 with certificates at both ends, from a party's folder (`testbed.secure.authority` says what is in it)."""

from __future__ import annotations

import os
import ssl
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
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"{folder}: expected cert.pem and its key.pem: {error}") from None
