"""TLS contexts that refuse certificates on a revocation list, as the list is on disk when a connection is made."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Any

from testbed.errors import UserError

_log = logging.getLogger(__name__)


class ListedContext(ssl.SSLContext):
    """A context for connections with parties of a lab; see `follow`.

    A list that replaced another counts from the next connection on, without a restart of whoever holds the context.
    """

    _path: Path | None = None
    _read: tuple[int, int, int] | None = None

    def follow(self, path: Path) -> None:
        """Refuse from now on who is on the list at `path`, if there is one; raises `UserError` if it is none."""
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
            return  # the list that was read last goes on counting
        except (OSError, ssl.SSLError) as error:
            _log.warning("%s: cannot be read, the list before it goes on counting: %s", self._path, error)

    def _load(self) -> None:
        if self._path is None:
            return
        state = _state(self._path)
        self.load_verify_locations(cafile=self._path)  # of two lists of one authority OpenSSL takes the newer
        self.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
        self._read = state


def _state(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size
