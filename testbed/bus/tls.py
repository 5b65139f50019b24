"""TLS 1.3 with certificates at both ends, from a party's folder (`testbed.lab.secure.authority` says what is in it).

Beside each file of trusted authorities, such as ca.pem, there is a list of revoked certificates, ca.crl: whoever is on
it is refused. The list is read again for a new connection when it has changed.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from testbed.bus.certificate import check_dates
from testbed.bus.revoked import ListedContext
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
    if folder is None:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return context
    context = _context(ssl.PROTOCOL_TLS_CLIENT, folder / trusts)
    _load(context, folder)
    return context


def server_context(folder: Path, trusts: str = "peers.pem") -> ssl.SSLContext:
    """Return what connections are accepted with, from who has a certificate of an authority in the file `trusts`."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, folder / trusts)
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0  # a session that is resumed is not checked against the revocation list
    _load(context, folder)
    return context


def _context(protocol: int, trusted: Path) -> ListedContext:
    context = ListedContext(protocol)
    try:
        context.load_verify_locations(cafile=trusted)
    except FileNotFoundError:
        raise UserError(
            f"{trusted}: no such file: expected a folder of `testbed ca issue` as tls_dir, --tls-dir or "
            f"{FOLDER_VARIABLE}"
        ) from None
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"{trusted}: expected certificates of who is trusted: {error}") from None
    context.follow(trusted.with_suffix(".crl"))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _load(context: ssl.SSLContext, folder: Path) -> None:
    cert, key = folder / "cert.pem", folder / "key.pem"
    try:
        if key.stat().st_mode & 0o077:
            raise UserError(f"{key}: others may read it: expected chmod 600")
        context.load_cert_chain(cert, key)
        check_dates(cert)
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"{folder}: expected cert.pem and its key.pem: {error}") from None
