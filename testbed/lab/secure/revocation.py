"""Revocation of a lab's certificates: one revocation list per authority, and a log of issued certificates.

A list is an X.509 CRL [RFC 5280]. It exists from the beginning, because a party that checks lists refuses all
certificates without one, and it expires only with its authority. A new list must be newer by at least a second: of two
lists with the same time OpenSSL keeps the old one.

The log, `issued.jsonl`, names every certificate that a party ever got. After a rotation the earlier certificates are
still valid, so a revocation must include them.
"""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from testbed.errors import UserError
from testbed.host.whole_files import write_whole

LOG = "issued.jsonl"
_SKEW = dt.timedelta(minutes=5)  # clocks of brokers and nodes may be behind, and a list from the future refuses all
_SECOND = dt.timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate that was issued: the party, its name (empty for the broker), and the certificate's serial."""

    party: str
    name: str
    serial: int


def note_issued(folder: Path, party: str, name: str, serial: int) -> None:
    """Add a certificate to the log of the authority in `folder`."""
    line = json.dumps({"party": party, "name": name, "serial": f"{serial:x}"}) + "\n"
    with os.fdopen(os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as file:
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())


def issued(folder: Path) -> Iterator[Issued]:
    """Yield the log's entries, the oldest first; raises `UserError` with the number of an unreadable line."""
    path = folder / LOG
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            yield Issued(str(entry["party"]), str(entry["name"]), int(entry["serial"], 16))
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{path}:{number}: expected an entry of `testbed ca issue`, found {line[:80]!r}") from None


def revoked(path: Path) -> dict[int, dt.datetime]:
    """Return the serials on a list with their dates (UTC), none without a list; raises `UserError` for a bad list."""
    return {entry.serial_number: entry.revocation_date_utc for entry in _read(path) or ()}


def ensure_list(path: Path, ca: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    """Write an empty list if there is none."""
    if not path.exists():
        _write(path, ca, key, {}, None)


def revoke_serials(path: Path, ca: x509.Certificate, key: ec.EllipticCurvePrivateKey, serials: set[int]) -> set[int]:
    """Put serials on a list, and return those that were not on it; without new ones the list is unchanged."""
    before = _read(path)
    known = revoked(path)
    new = serials - set(known)
    if new or before is None:
        now = dt.datetime.now(dt.UTC).replace(microsecond=0)
        _write(path, ca, key, known | dict.fromkeys(new, now), before)
    return new


def _read(path: Path) -> x509.CertificateRevocationList | None:
    try:
        return x509.load_pem_x509_crl(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: expected a revocation list of `testbed ca`: {error}") from None


def _write(
    path: Path, ca: x509.Certificate, key: ec.EllipticCurvePrivateKey, serials: dict[int, dt.datetime],
    before: x509.CertificateRevocationList | None,
) -> None:  # fmt: skip
    number, since = 1, dt.datetime.now(dt.UTC).replace(microsecond=0) - _SKEW
    if before is not None:
        number = before.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number + 1
        since = max(since, before.last_update_utc + _SECOND)
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(ca.subject)
        .last_update(since)
        .next_update(ca.not_valid_after_utc)  # with an expired list all certificates would be refused
        .add_extension(x509.CRLNumber(number), critical=False)
    )
    for serial, date in sorted(serials.items()):
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(date).build()
        builder = builder.add_revoked_certificate(entry)
    content = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    write_whole(path, content, mode=0o600)
