"""Mutual TLS 1.3, with the certificates of a party's folder (described in `testbed.lab.secure.authority`).

Beside each file of trusted authorities, such as ca.pem, there is a certificate revocation list (CRL), such as ca.crl.
A changed list is read again for the next connection.
"""

from __future__ import annotations

import logging
import os
import ssl
from pathlib import Path
from typing import Any

from testbed.bus.certificate import check_dates
from testbed.errors import UserError

FOLDER_VARIABLE = "TESTBED_TLS_DIR"
_log = logging.getLogger(__name__)


class ListedContext(ssl.SSLContext):
    """A TLS context that reads its revocation list again when the file has changed; see `follow`.

    A new list applies from the next connection on, without a restart of the process.
    """

    _path: Path | None = None
    _read: tuple[int, int, int] | None = None

    def follow(self, path: Path) -> None:
        """Refuse certificates on the list at `path` from now on; raises `UserError` for an existing, invalid list."""
        self._path = path
        if not path.exists():
            return
        try:
            self._load()
        except (OSError, ssl.SSLError) as error:
            raise UserError(f"{path}: expected a revocation list of `testbed ca`: {error}") from None

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """See `ssl.SSLContext.wrap_bio`."""
        self._renew()
        return super().wrap_bio(*args, **kwargs)

    def wrap_socket(self, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        """See `ssl.SSLContext.wrap_socket`."""
        self._renew()
        return super().wrap_socket(*args, **kwargs)

    def _renew(self) -> None:
        if self._path is None:
            return
        try:
            if _state(self._path) != self._read:
                self._load()
        except FileNotFoundError:
            return  # the last list that was read stays in force
        except (OSError, ssl.SSLError) as error:
            _log.warning("%s: cannot be read, the previous list stays in force: %s", self._path, error)

    def _load(self) -> None:
        if self._path is None:
            return
        state = _state(self._path)
        self.load_verify_locations(cafile=self._path)  # of two lists of one authority OpenSSL uses the newer
        self.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
        self._read = state


def _state(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def tls_folder(given: Path | None) -> Path | None:
    """Return the folder of our certificate: the given one, else that of the environment variable, else None."""
    named = os.environ.get(FOLDER_VARIABLE)
    folder = given or (Path(named) if named else None)
    return folder.expanduser() if folder else None


def client_context(folder: Path | None, trusts: str = "ca.pem") -> ssl.SSLContext:
    """Return the TLS client context that trusts the authorities in the file `trusts`.

    Without a folder the context trusts the authorities of this machine, and presents no certificate. Raises
    `UserError`.
    """
    if folder is None:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return context
    context = _context(ssl.PROTOCOL_TLS_CLIENT, folder / trusts)
    _load(context, folder)
    return context


def server_context(folder: Path, trusts: str = "peers.pem") -> ssl.SSLContext:
    """Return the TLS server context that requires a client certificate of an authority in the file `trusts`."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, folder / trusts)
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0  # a resumed session is not checked against the revocation list
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
        raise UserError(f"{trusted}: expected the certificates of trusted authorities: {error}") from None
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
